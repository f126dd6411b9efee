"""``grpo-bench simulate``: what it refuses before anything is written, and how it ends where a run does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_sim.held_out import held_out

from grpo_bench.contract import Interrupted

from .conftest import Verb
from .small import MOCK, kept, seen, small

NEVER = ("--set", "validation.metric=off", "--set", "validation.target=off", "--set", "validation.deferred=true",
         "--set", "validation.period=100", "--set", "validation.at_start=false")
WRONG = [
    (("--set", "grpo.max_stepz=3"), "max_stepz"),
    (("--replicas", "0"), "--replicas: should be an integer from 1 to 1000, got '0'"),
    (("--seed", "-1"), "--seed"),
    (("--seed", "4294967295", "--replicas", "2"), "--replicas 2: the seed of the last, 4294967295 + 1, would be above"),
    (("--passes-at", "0"), "--passes-at 0: no validation is due after this step of profile 'mock'"),
    (("--passes-at", "3"), "steps after which one is due: 2, 4, 6"),
    (("--passes-at", "8"), "--passes-at 8: no validation is due"),
    (("--scale", "updat=2"), "--scale updat=2: 'updat' is no quantity"),
    (("--scale", "update=-1"), "--scale update=-1: should have the form QUANTITY=FACTOR"),
    (("--scale", "update=nan"), "--scale update=nan: should have"),
    (("--scale", "update=inf"), "--scale update=inf: should have"),
    (("--scale", "update"), "--scale update: should have"),
    (("--scale", "update=fast"), "--scale update=fast: should have"),
    (("--scale", "update=2", "--scale", "Update=1"), "--scale Update=1: update is scaled by 2 already"),
    (("--scale", "driver=2"), "--scale driver: by model 'small' it takes no time in profile 'mock'"),
    (("--sweep", "scale.driver=1,2"), "--sweep scale.driver: by model 'small' it takes no time in profile 'mock'"),
    (("--sweep", "grpo.max_stepz=1,2"), "--sweep grpo.max_stepz=1: "),
    (("--sweep", "seed=1,2"), "--sweep seed=1: the seeds are the simulation's own"),
    (("--sweep", "grpo.max_steps=4,zero"), "--sweep grpo.max_steps=zero: "),
    (("--sweep", "scale.updat=1,2"), "--sweep scale.updat=1: 'updat' is no quantity"),
    (("--sweep", "grpo.max_steps"), "--sweep grpo.max_steps: should have the form KEY=A,B,C"),
    (("--sweep", "grpo.max_steps=1,2", "--sweep", "scale.update=1"), "--sweep scale.update=1: one setting at a time"),
    (("--held-out",), "--held-out: model 'small' keeps no logs that it was not made of"),
    (NEVER, "validation.deferred: no validation is due in any step"),
    (("--what-iff",), "unrecognized arguments: --what-iff"),
    (("--calibrate", "."), "--calibrate and --model both say how long parts take"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_cannot_be_is_one_message_and_nothing_is_written(verb: Verb, words: tuple[str, ...], message: str):
    code, out, err = verb.mock(*words)
    assert code == 2 and not out and message in err, err
    assert len([line for line in err.splitlines() if not line.startswith("  ")]) == 1
    assert not list(verb.folder.iterdir())


def unreadable(folder: Path) -> str:
    (folder / "broken.json").write_text('{"name": 1}')
    return str(folder / "broken.json")


OTHER: list[tuple[Callable[[Path], tuple[str, ...]], str]] = [
    (lambda folder: ("--profile", "nope"), "nope"),
    (lambda folder: ("--profile", "mock"), "profile 'mock': how long its parts take is not known"),
    (lambda folder: ("--profile", "mock", "--calibrate", str(folder)), "run"),
    (lambda folder: ("--profile", "mock", "--calibrate", str(folder / "nothing")), "nothing"),
    (lambda folder: ("--profile", "mock", "--model", str(folder / "nothing")), "cannot read the model"),
    (lambda folder: ("--profile", "mock", "--model", str(folder)), "cannot read the model"),
    (lambda folder: ("--profile", "mock", "--model", unreadable(folder)), "is no model of times: "),
    (lambda folder: ("--model", str(folder / "model.json")), "--profile"),
    (lambda folder: ("--profile", "mock", "--division", "open"), "--division open"),
]


@pytest.mark.parametrize(("words", "message"), OTHER)
def test_a_profile_or_a_model_that_cannot_be_had_is_one_message(verb: Verb, words, message: str):
    code, out, err = verb(*words(verb.folder.parent))
    assert code == 2 and not out and message in err, err
    assert len([line for line in err.splitlines() if not line.startswith("  ")]) == 1
    assert not list(verb.folder.iterdir())


@pytest.mark.parametrize(("file", "hint"), [
    (".", "the simulation in it keeps its model: --model {folder}/model.json"),
    ("nothing", "each simulation keeps its model as model.json in its folder; --calibrate RUN takes the times of a"),
    ("broken.json", "each simulation keeps its model as model.json in its folder; --calibrate RUN takes the times"),
])
def test_a_file_that_is_no_model_says_where_one_may_be(verb: Verb, file: str, hint: str):
    folder = verb.folder.parent
    unreadable(folder)
    code, _, err = verb("--profile", "mock", "--model", str(folder / file))
    assert code == 2 and hint.format(folder=folder) in " ".join(err.split())


def test_what_a_sweep_brings_in_can_be_scaled(verb: Verb):
    settings = tuple(item for item in MOCK if not item.startswith("checkpoint.period"))
    code, _, err = verb.mock("--replicas", "1", "--scale", "checkpoint=2", settings=(*settings, "checkpoint.period=0"))
    assert code == 2 and "--scale checkpoint: by model" in err
    assert verb.mock("--replicas", "1", "--scale", "checkpoint=2", "--sweep", "checkpoint.period=0,1",
                     settings=(*settings, "checkpoint.period=0"))[0] == 0


def test_a_step_cannot_meet_a_target_that_there_is_none_of(verb: Verb):
    code, out, err = verb.mock("--passes-at", "4", settings=(*MOCK, "validation.metric=off", "validation.target=off"))
    assert code == 2 and not out and "--passes-at 4: profile 'mock' has no target that weights could meet" in err
    assert "hint: leave out --passes-at" in err and not list(verb.folder.iterdir())


def test_a_model_that_does_not_say_what_its_logs_ran_under_cannot_be_compared(verb: Verb):
    verb.model = kept(small(measured=(seen(32, step=(1.0,)),)), verb.folder.parent)
    code, _, err = verb.mock("--held-out")
    assert code == 2 and "does not say what its logs of batch 32 ran under" in err and not verb.out.exists()


@pytest.mark.parametrize("place", ["file", "file/below", "full"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is(verb: Verb, tmp_path: Path, place: str):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    code, out, err = verb.mock("--out", str(tmp_path / place))
    assert code == 2 and not out and f"--out {tmp_path / place}: " in err
    assert (tmp_path / "file").read_text() == "kept" and os.listdir(tmp_path / "full") == ["kept"]


def test_a_place_without_permission_is_refused(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, _, err = verb.mock()
    assert code == 2 and "may not be written" in err and not list(verb.folder.iterdir())


def test_a_run_that_fails_is_one_message_and_its_journal_stays(verb: Verb):
    verb.model = kept(small(reads={"timeout_s": "limits.score_s"}), verb.folder.parent)
    settings = (*MOCK, "limits.score_s=50", "limits.rollout_retries=0", "limits.max_failed_share=0.5")
    code, out, err = verb.mock("--seed", "5", settings=settings)
    assert code == 1 and not out and "the simulated run fails: " in err and "Traceback" not in err
    assert f"grpo-bench report {verb.out / 'replica-0-seed-5'} shows it" in err
    assert (verb.out / "replica-0-seed-5" / "events.jsonl").read_text().splitlines()[-1].count('"failed"')
    assert not (verb.out / "simulation.json").exists()


def test_a_part_that_never_answers_ends_the_run_by_its_deadline(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    async def never(self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("grpo_bench_sim.trainer.ModelledTrainer.start", never)
    code, out, err = verb.mock()
    assert code == 1 and not out and "the simulated run fails: " in err and "limits.start_s" in err


def test_a_run_that_fails_and_is_not_kept_names_no_folder(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    def broken(self: object, batch: object) -> None:
        raise ValueError("not today")

    def failing(*arguments: Any) -> list[Any]:
        monkeypatch.setattr("grpo_bench_sim.trainer.ModelledTrainer.update", broken)
        return held_out(*arguments)

    monkeypatch.setattr("grpo_bench_sim.held_out.held_out", failing)
    measured = {"conditions": {"16": MOCK}, "measured": (seen(16, step=(1.0,)),)}
    verb.model = kept(small(**measured), verb.folder.parent)
    code, out, err = verb.mock("--held-out", "--replicas", "1")
    assert code == 1 and "run ends" in out and "--held-out: the simulated run fails: " in err and "not today" in err
    assert "grpo-bench-sim-" not in err


def test_a_run_that_hangs_is_one_message(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    async def hanging(*arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("grpo_bench_sim.simulation.conduct", hanging)
    code, out, err = verb.mock("--seed", "5")
    assert code == 1 and not out and "the simulated run hangs: every task waits and nothing is scheduled" in err
    assert str(verb.out / "replica-0-seed-5") in err and "Traceback" not in err


def test_progress_stays_out_of_json(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, err = verb.mock("--json", "--replicas", "1")
    assert code == 0 and json.loads(out) and err.startswith("replica 1 of 1: ")


def test_an_interrupt_that_the_run_takes_for_itself_ends_the_verb(verb: Verb, monkeypatch: pytest.MonkeyPatch):
    def stopped(*arguments: object, **others: object) -> None:
        raise Interrupted("the run was interrupted")

    monkeypatch.setattr("grpo_bench_sim.simulation.simulate", stopped)
    code, out, err = verb.mock()
    assert (code, out, err) == (130, "", "grpo-bench: interrupted\n")


def test_an_interrupt_leaves_whole_journals_and_ends_with_130(verb: Verb):
    words = ["simulate", "--profile", "mock", "--model", verb.model, "--out", str(verb.out), "--replicas", "1000",
             *(part for setting in MOCK for part in ("--set", setting))]
    process = subprocess.Popen([sys.executable, "-m", "grpo_bench", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stderr.readline().startswith("replica 1 of 1000: ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and err.splitlines()[-1] == "grpo-bench: interrupted" and "Traceback" not in err
    journals = list(verb.out.glob("replica-*/events.jsonl"))
    assert journals and not (verb.out / "simulation.json").exists()
    for journal in journals:
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        assert not events or events[-1]["kind"] == "run_ended"
