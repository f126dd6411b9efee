"""What a model's file may not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_sim.model import read_model

from grpo_bench.contract import InputError

from .conftest import Verb
from .small import MOCK, kept, seen, small


def measured(*values: float) -> dict[str, Any]:
    return {"measured": [{"batch": 16, "replicas": [4], "held_out": True, "values": {"step": values}}]}


NONSENSE: list[tuple[dict[str, Any], str]] = [
    (measured(float("nan")), "finite"), (measured(float("inf")), "finite"), (measured(0.0), "greater than 0"),
    (measured(-1.0), "greater than 0"), (measured(), "are none"), (measured(2.0, 1.0), "not in order"),
    ({"rows": [9, 2]}, "not in order"), ({"rows": [-5, 2]}, "greater than or equal to 1"),
    ({"passes_after": {"16": 0}}, "greater than or equal to 1"), ({"like": {"a": float("nan")}}, "'a' is nan"),
    ({"like": {"a": -1}, "reads": {"ranks": "a"}}, "'a' is negative"),
    ({"refit": {"kind": "lognormal", "median": 1, "sigma": 1e308}}, "less than or equal to 20"),
    ({"refit": {"kind": "lognormal", "median": 1e300}}, "less than or equal to 1000000000"),
    ({"stalls": {"order": [1.0], "spread": 1e308}}, "less than or equal to 20"),
    ({"stalls": {"order": [1.0], "paired": 2}}, "2 blocks are paired, of 1"),
    ({"needs": {"update": ["trainer.typo"]}}, "needs: update needs 'trainer.typo', which like does not have"),
    ({"needs": {"udpate": []}}, "should be 'start'"),
    ({"assumed": {"refti": "a guess"}}, "assumed: a model has no 'refti'"),
    ({"measured": [{"batch": 16, "replicas": [4], "values": {"setp": [1.0]}}]}, "should be 'step'"),
]


@pytest.mark.parametrize(("wrong", "said"), NONSENSE, ids=[f"{next(iter(wrong))}: {said}" for wrong, said in NONSENSE])
def test_nonsense_is_refused_before_anything_is_written(verb: Verb, wrong: dict[str, Any], said: str):
    file = Path(verb.model)
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    code, out, err = verb.mock("--held-out")
    assert code == 2 and not out and "is no model of times: " in err and said in err.replace("\n", " "), err
    assert not list(verb.folder.iterdir())


def test_what_is_no_json_names_no_place(tmp_path: Path):
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(InputError, match="is no model of times: Invalid JSON"):
        read_model(tmp_path / "model.json")


@pytest.mark.parametrize("conditions", [("grpo.nope=1",), ("junk",)])
def test_conditions_that_cannot_be_planned_are_refused_before_anything_is_written(verb: Verb, conditions):
    verb.model = kept(small(conditions={"16": conditions}, measured=(seen(16, step=(1.0,)),)), verb.folder.parent)
    code, out, err = verb.mock("--held-out")
    assert code == 2 and not out and not list(verb.folder.iterdir())
    assert "--held-out: the conditions of batch 16 in model 'small': " in err and conditions[0].partition("=")[0] in err


def test_a_model_sends_the_terminal_no_commands(verb: Verb):
    hostile = "\x1b[31mEVIL\x07\u202e"
    verb.model = kept(small(name=hostile, date=hostile, assumed={"refit": hostile}), verb.folder.parent)
    code, out, err = verb.mock("--replicas", "1")
    assert code == 0 and "\\x1b[31mEVIL\\x07\\u202e" in out
    assert not any(sign in out + err for sign in "\x1b\x07\u202e")


def test_two_simulations_do_not_share_a_folder(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    real = verb.out
    monkeypatch.setattr("grpo_bench_sim.simulate_cli._place", lambda arguments: real)
    assert verb.mock("--replicas", "1")[0] == 0
    files = sorted(real.rglob("*"))
    code, out, err = verb.mock("--replicas", "1")
    assert code == 2 and not out and f"--out {real}: another simulation is in it" in err
    assert sorted(real.rglob("*")) == files


def test_a_name_that_is_taken_gets_a_number(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_bench_sim.simulate_cli._place", lambda arguments: Path("simulations/now-mock"))
    words = ["--profile", "mock", "--model", verb.model, "--replicas", "1", *(
        part for setting in MOCK for part in ("--set", setting))]
    assert [verb(*words)[0] for _ in range(3)] == [0, 0, 0]
    assert sorted(place.name for place in Path("simulations").iterdir()) == ["now-mock", "now-mock-2", "now-mock-3"]
