"""``grpo-bench simulate``: what it prints and writes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main

from .conftest import Verb
from .small import DEFERRED, MOCK, ROLLOUTS, kept, seen, small, varied


def keys(value: Any) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key
        yield from keys(inner)
    for inner in value if isinstance(value, list) else ():
        yield from keys(inner)


def finite(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(finite, inner)) and not (isinstance(value, float) and not math.isfinite(value))


def test_a_screen_says_what_was_simulated_how_long_it_takes_and_where_the_time_goes(verb: Verb):
    code, out, err = verb.mock("--replicas", "2", "--seed", "5")
    assert code == 0, err
    lines = out.replace(str(verb.folder), "").splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert lines[0] == "mock: 2 replicas simulated, seeds 5 to 6; nothing but times"
    assert lines[1] == "model   small, 2026-01-02: a test"
    assert re.search(r"^time to target +[\d.]+ .* after start-up; step 4 is assumed to meet it$", out, re.M)
    assert re.search(r"^rollout +[\d.]+ +[\d.]+ +\d+% .* calibrated$", out, re.M)
    assert re.search(r"^the trainer waits for rollouts \d+% of the time after start-up", out, re.M)
    assert "calibrated    start, rollout, stalls" in out
    first, second = err.splitlines()
    assert re.fullmatch(r"replica 1 of 2: seed 5, 4 steps, [\d.]+ min of the run's time", first)
    assert second.startswith("replica 2 of 2: seed 6, 4 steps, ")


def test_nothing_says_what_the_policy_would_learn(verb: Verb):
    record = verb.json("--what-if", "--sweep", "grpo.prompts_per_step=4,8", "--replicas", "1")
    words = ("accuracy", "reward", "loss", "pass_k", "pass@", "metric")
    assert not [key for key in keys(record) for word in words if word in key.lower()]
    _, out, _ = verb.mock("--replicas", "1", "--out", str(verb.folder / "again"))
    page = Path(record["page"]).read_text()
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.S).lower()
    assert not [word for word in ("reward", "pass@", "pass_k") if word in out or word in body]


def test_the_replicas_are_runs_that_report_reads(verb: Verb, capsys: pytest.CaptureFixture[str]):
    record = verb.json("--replicas", "2", "--seed", "5")
    assert [run["folder"] for run in record["runs"]] == [str(verb.out / f"replica-{number}-seed-{number + 5}")
                                                         for number in range(2)]
    assert sorted(os.listdir(verb.out)) == ["model.json", "replica-0-seed-5", "replica-1-seed-6", "simulation.html",
                                            "simulation.json"]
    for run in record["runs"]:
        assert main(["report", "--json", run["folder"]]) == 0
        told = json.loads(capsys.readouterr().out)
        assert sum(run["ledger"].values()) == pytest.approx(run["wall"]) and told["modelled"] == "small: a test"


def test_json_is_the_record_and_has_every_step(verb: Verb):
    record = verb.json("--replicas", "2", "--seed", "5")
    assert json.loads((verb.out / "simulation.json").read_text()) == record and finite(record)
    assert record["seeds"] == [5, 6] and record["scored"] is False and record["target_assumed_at_step"] == 4
    first, later = record["runs"][0]["steps"][0], record["runs"][0]["steps"][1]
    assert [step["step"] for step in record["runs"][0]["steps"]] == [1, 2, 3, 4]
    assert first["phases"]["update"] == pytest.approx(26.0) and later["phases"]["update"] == pytest.approx(20.0)
    assert record["startup"] == {"median": 60.0, "least": 60.0, "most": 60.0}
    phases = {item["phase"]: item for item in record["phases"]}
    assert phases["update"]["seconds"] == pytest.approx(86.0) and phases["update"]["each"]["median"] == 20.0
    assert phases["checkpoint"]["each"] == {"median": 4.0, "q10": 4.0, "q90": 4.0}
    assert sum(item["share"] for item in record["phases"]) == pytest.approx(1.0, abs=0.02)


def test_equal_seeds_give_equal_times_and_others_do_not(verb: Verb, tmp_path: Path):
    again = [verb.json("--out", str(tmp_path / name), "--seed", seed, "--replicas", "1")["runs"][0]
             for name, seed in (("a", "5"), ("b", "5"), ("c", "6"))]
    for run in again:
        del run["folder"]
    assert again[0] == again[1]
    assert again[0]["wall"] != again[2]["wall"]


def test_the_model_is_kept_and_can_be_taken_again(verb: Verb, tmp_path: Path):
    record = verb.json("--replicas", "1")
    again = verb.json("--replicas", "1", "--out", str(tmp_path / "again"), "--model", record["model_file"])
    assert again["model"] == record["model"] and again["whole"] == record["whole"]


def test_times_are_told_as_median_least_and_most(verb: Verb):
    record = verb.json("--replicas", "3", "--seed", "5")
    scores, walls = (sorted(run[key] for run in record["runs"]) for key in ("score", "wall"))
    assert len(set(scores)) == 3
    for told, values in ((record["target"], scores), (record["ended"], walls), (record["whole"], walls)):
        assert list(told.values()) == [values[1], values[0], values[2]]


def test_a_deferred_evaluation_is_counted_after_the_training(verb: Verb):
    verb.model = kept(small(), verb.folder.parent)
    record = verb.json("--replicas", "2", settings=DEFERRED)
    after = record["evaluation"]
    # of the weights after steps 2, 4 and 6 the second pass: 4 x 16 rollouts; reading them takes what writing took
    assert (after["weights"], after["saved"]) == (2, 3)
    assert after["reading"] == [4.0, 4.0] and after["validation"] == pytest.approx([100.0, 100.0])
    assert after["whole"] == pytest.approx([60 + 2 * (100 + 4)] * 2)
    # the training goes on to the end: six steps of 100 + 5 + 20 + 3, a refit before, three times weights
    assert record["ended"]["median"] == pytest.approx(60 + 3 + 6 * 128 + 3 * 4)
    assert record["whole"]["median"] == pytest.approx(record["ended"]["median"] + after["whole"][0])
    # the moment that counts is the end of the update of step 4
    assert record["target"]["median"] == pytest.approx(3 + 3 * 128 + 4 + 125)
    _, out, _ = verb.mock("--replicas", "1", "--out", str(verb.folder / "again"), settings=DEFERRED)
    assert re.search(r"^evaluation after it +4\.5 +4\.5 +4\.5  start and end \+ 2 of 3 weights x "
                     r"\(0\.1 to read \+ 1\.7\)$", out, re.M)


def test_weights_of_which_none_passes_are_all_evaluated(verb: Verb):
    verb.model = kept(small(passes_after={}), verb.folder.parent)
    record = verb.json("--replicas", "1", settings=(*DEFERRED, "grpo.max_steps=5"))
    assert (record["evaluation"]["weights"], record["evaluation"]["saved"]) == (2, 2)


def test_without_a_target_there_is_no_time_to_it(verb: Verb):
    settings = (*MOCK, "validation.metric=off", "validation.target=off")
    record = verb.json("--replicas", "1", settings=settings)
    assert record["target"] is None and record["target_assumed_at_step"] is None
    assert len(record["runs"][0]["steps"]) == 6


@pytest.mark.parametrize("step", ["2", "6"])
def test_the_step_that_meets_the_target_can_be_said(verb: Verb, step: str):
    record = verb.json("--passes-at", step, "--replicas", "1")
    assert record["target_assumed_at_step"] == int(step) == len(record["runs"][0]["steps"])


def test_a_scale_multiplies_a_quantity_and_is_an_extrapolation(verb: Verb):
    record = verb.json("--scale", "log_probabilities=3", "--scale", "update=0", "--replicas", "1")
    step = record["runs"][0]["steps"][1]
    assert step["phases"]["log_probabilities"] == pytest.approx(15.0) and step["phases"]["update"] == 0.0
    kinds = {item["quantity"]: item["kind"] for item in record["standings"]}
    assert kinds["log-probabilities"] == kinds["update"] == "extrapolated" and kinds["refit"] == "calibrated"
    assert record["scenario"]["scales"] == {"log-probabilities": 3.0, "update": 0.0}


def test_the_least_known_of_what_a_phase_is_made_of_counts(verb: Verb):
    verb.model = kept(varied(assumed={"stalls": "a guess"}), verb.folder.parent)
    record = verb.json("--replicas", "1")
    phases = {item["phase"]: item["standing"] for item in record["phases"]}
    assert phases["rollout"] == "assumed" and phases["update"] == "calibrated"


def test_what_the_first_step_takes_longer_is_part_of_three_phases(verb: Verb):
    record = verb.json("--replicas", "1", "--scale", "first-step=0")
    phases = {item["phase"]: item["standing"] for item in record["phases"]}
    assert {phase for phase, kind in phases.items() if kind == "extrapolated"} == {
        "log_probabilities", "update", "refit"}


def test_a_profile_of_a_cluster_is_simulated_where_nothing_of_the_cluster_is(verb: Verb):
    like = {"policy.config": "package:grpo_bench_rules_mlperf/qwen35_397b_a17b.json"}
    rolling = ROLLOUTS.model_copy(update={"turns": 1})
    verb.model = kept(small(like=like, passes_after={"256": 4608}, train=(rolling,)), verb.folder.parent)
    code, out, err = verb("--profile", "gb300-256", "--model", verb.model, "--replicas", "1",
                          "--set", "grpo.max_steps=18", "--set", "validation.max_tasks=4")
    assert code == 0, err
    assert re.search(r"^gb300-256: 1 replica simulated, seed \d+ \(drawn\); ", out)
    assert re.search(r"^given   \d+ things that this machine lacks; grpo-bench plan --profile gb300-256 ", out, re.M)
    assert re.search(r"^the trainer's 64 GPUs wait for rollouts \d+%", out, re.M)
    (folder,) = (verb.folder / "simulations").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-gb300-256", folder.name) and (folder / "simulation.json").is_file()


def test_what_ifs_and_sweeps_are_tables(verb: Verb):
    code, out, err = verb.mock("--replicas", "1", "--what-if", "--sweep", "scale.update=0.5,1,2")
    assert code == 0, err
    assert re.search(r"^what if, min +to target +change +training ends +change +what moves$", out, re.M)
    # four updates of 20 s, to the moment at which the validation after the last is over
    assert re.search(r"^updates in half the time \* +[\d.]+ +-0\.67 +[\d.]+ +-0\.67 +update -0\.67$", out, re.M)
    assert "\n* extrapolated from what was measured; simulation.html says why\n" in out
    assert re.search(r"^deferred evaluation \* +[\d.]+ +-[\d.]+ +[\d.]+ ", out, re.M)
    assert re.search(r"^scale.update +to target, min +least +most +most of it +extrapolated$", out, re.M)
    rows = re.findall(r"^(0\.5|1|2) +([\d.]+) ", out, re.M)
    assert re.search(r"^0\.5 .* update$", out, re.M) and re.search(r"^1 .*rollout [\d.]+$", out, re.M)
    minutes = [float(value) for _, value in rows]
    assert [value for value, _ in rows] == ["0.5", "1", "2"] and minutes == sorted(minutes) and len(set(minutes)) == 3
    progress = err.splitlines()[1:]
    assert "what if: updates in half the time" in progress
    assert progress[-3:] == [f"scale.update = {value}" for value in ("0.5", "1", "2")]


def test_what_was_held_out_is_compared_under_its_own_conditions(verb: Verb):
    model = small(conditions={"16": MOCK, "32": (*MOCK, "grpo.prompts_per_step=8")},
                  passes_after={"16": 64, "32": 128},
                  measured=(seen(32, step=(128.0, 130.0), rollout=(90.0, 100.0, 112.0), run_minutes=(12.0,)),
                            seen(16, step=(100.0,)), seen(64, held_out=False, step=(1.0,))))
    verb.model = kept(model, verb.folder.parent)
    # what the command line sets is no part of those conditions
    record = verb.json("--held-out", "--replicas", "2", "--set", "schedule.mode=async", "--set", "schedule.max_age=1")
    found = {(item["batch"], item["name"]): item for item in record["held_out"]}
    assert set(found) == {(32, "step"), (32, "exposed generation"), (32, "run"), (16, "step")}
    # three steps from the second on, of six replicas: two would be too few
    assert found[32, "step"]["simulated"] == pytest.approx([128.0] * 18, abs=1e-3)
    assert found[32, "step"]["deviation"] == pytest.approx(128 / 129 - 1, abs=1e-6)
    assert found[32, "exposed generation"]["deviation"] == pytest.approx(0.0, abs=1e-6)
    assert found[16, "step"]["deviation"] == pytest.approx(0.28, abs=1e-6)
    _, out, _ = verb.mock("--held-out", "--replicas", "1", "--out", str(verb.folder / "again"))
    assert re.search(r"^step +s +32 +129 \(128 to 130\) +128 \(128 to 128\) +-0\.8%  yes$", out, re.M)
    assert re.search(r"^step +s +16 +100 \(100 to 100\) +128 \(128 to 128\) +\+28\.0%  NO$", out, re.M)
