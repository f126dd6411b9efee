"""From events to lines: the story of a run, the values before it, and runs that took several attempts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from grpo_bench_rules_mlperf.audit import audit
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from hypothesis import given, settings, strategies as st

from grpo_bench.contract import Event, Kind, Phase, Status

START_MS = 1_772_600_767_000
"""2026-03-04 05:06:07 UTC."""
STORY = ("_start", "_stop", "eval_accuracy")


def parsed(events: list[Event], **identity: Any) -> list[Line]:
    return [parse(line) for line in lines(events, MllogConfig(**identity))]


def values(found: list[Line]) -> dict[str, Any]:
    return {line.key: line.value for line in found}


def story(found: list[Line]) -> list[tuple[float, str, int, Any]]:
    """Seconds since the process began, key, line of the journal, and samples or None, of all but single values."""
    return [((line.time_ms - START_MS) / 1000, line.key, line.metadata["lineno"], line.metadata.get("samples_count"))
            for line in found if line.key.endswith(STORY)]


def test_one_line_as_it_stands_in_the_file(make_benchmark) -> None:
    last = lines(make_benchmark([174]).events, MllogConfig())[-1]
    assert last == (
        ':::MLLOG {"namespace": "", "time_ms": 1772601013500, "event_type": "INTERVAL_END", "key": "run_stop", '
        '"value": null, "metadata": {"file": "events.jsonl", "lineno": 131, "samples_count": 4608, "step": 18, '
        '"status": "success"}}')


def test_the_story_of_a_run(make_laptop) -> None:
    found = parsed(make_laptop().events)
    assert story(found) == [
        (0.0, "init_start", 1, None), (61.5, "init_stop", 3, None), (61.5, "run_start", 3, None),
        (61.5, "eval_start", 4, 0), (66.5, "eval_accuracy", 5, 0), (66.5, "eval_stop", 5, 0),
        (66.5, "block_start", 6, 0), (86.5, "block_stop", 20, 64),
        (86.5, "eval_start", 20, 64), (91.5, "eval_accuracy", 21, 64), (91.5, "eval_stop", 21, 64),
        (91.5, "block_start", 22, 64), (111.5, "block_stop", 36, 128),
        (111.5, "eval_start", 36, 128), (116.5, "eval_accuracy", 37, 128), (116.5, "eval_stop", 37, 128),
        (116.5, "block_start", 38, 128), (126.5, "block_stop", 44, 160), (126.5, "run_stop", 44, 160)]
    assert [line.value for line in found if line.key == "eval_accuracy"] == [10 / 128, 40 / 128, 80 / 128]
    assert found[-1].metadata["status"] == "aborted"
    assert found[0].key == "cache_clear"


def test_the_accuracy_is_the_metric_that_ends_the_run(make_laptop) -> None:
    events = make_laptop().events
    told = [replace(event, data={**event.data, "metric": "accuracy"}) if event.kind == Kind.RUN_STARTED else event
            for event in events]
    measured = [event.data["metrics"]["accuracy"] for event in events if event.kind == Kind.VALIDATION]
    assert [line.value for line in parsed(told) if line.key == "eval_accuracy"] == measured
    assert measured != [line.value for line in parsed(events) if line.key == "eval_accuracy"]


def test_each_step_has_its_statistics(make_laptop) -> None:
    stats = [(line.metadata["step"], line.metadata["samples_count"], line.value) for line in parsed(
        make_laptop().events) if line.key == "tracked_stats"]
    assert stats[6:8] == [
        (4, 128, {"reward": 0.375, "reduced_train_loss": -0.5, "grad_norm": 0.25, "global_valid_toks": 1004.0,
                  "global_valid_seqs": 256.0}),
        (4, 128, {"train_step_time": 10.0})]
    assert [step for step, *_ in stats] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_the_values_of_a_benchmark_run(make_benchmark) -> None:
    header = values(parsed(make_benchmark().events, org="ACME", platform="64 of them", status="onprem",
                           poc_email="a@b.c", caches_cleared=True))
    ruleset = {"use": "mlperf-training-6.1", "division": "open"}
    assert values(parsed(make_benchmark(settings={"ruleset": ruleset}).events))["submission_division"] == "open"
    assert {key: header[key] for key in (
        "cache_clear", "submission_benchmark", "submission_org", "submission_division", "submission_platform",
        "submission_status", "submission_poc_email", "seed", "max_steps", "global_batch_size", "micro_batch_size",
        "max_sequence_length", "train_samples", "eval_samples", "init_checkpoint_step", "opt_name",
        "opt_base_learning_rate", "opt_gradient_clip_norm", "tensor_parallelism", "expert_parallelism",
        "lowest_numerical_precision_in_attn", "config_filename", "generation_training_rollout_top_p",
        "generation_validation_rollout_temperature", "generation_validation_rollout_top_p", "num_prompts_per_step",
        "num_generations_per_prompt", "gradient_accumulation_steps", "target_accuracy", "scored")} == {
        "cache_clear": True, "submission_benchmark": "qwen35_397b_grpo", "submission_org": "ACME",
        "submission_division": "closed", "submission_platform": "64 of them", "submission_status": "onprem",
        "submission_poc_email": "a@b.c", "seed": 7, "max_steps": 30, "global_batch_size": 256, "micro_batch_size": 1,
        "max_sequence_length": 65_536, "train_samples": 11_200, "eval_samples": 251, "init_checkpoint_step": 0,
        "opt_name": "adamw", "opt_base_learning_rate": 1e-6, "opt_gradient_clip_norm": 0.125, "tensor_parallelism": 4,
        "expert_parallelism": 32, "lowest_numerical_precision_in_attn": "bfloat16", "config_filename": "profile.json",
        "generation_training_rollout_top_p": 1.0, "generation_validation_rollout_temperature": 0.1,
        "generation_validation_rollout_top_p": 0.95, "num_prompts_per_step": 16, "num_generations_per_prompt": 16,
        "gradient_accumulation_steps": 32, "target_accuracy": 0.69, "scored": True}
    assert "submission_poc_name" not in header


def test_something_else_says_so(make_laptop) -> None:
    found = parsed(make_laptop(scored=False, unscored=["agent 'x' is a stand-in"]).events)
    header = values(found)
    assert (header["submission_org"], header["submission_platform"]) == ("none", "laptop")
    assert (header["max_sequence_length"], header["eval_samples"], header["global_batch_size"]) == (512, 128, 32)
    assert header["generation_validation_rollout_temperature"] == 1.0
    assert header["gradient_accumulation_steps"] == 16
    assert header["stack"] == {"policy": "package:tiny/base", "trainer": "real", "generator": "real"}
    (scored,) = [line for line in found if line.key == "scored"]
    assert (scored.value, scored.metadata["reasons"]) == (False, ["agent 'x' is a stand-in"])


def test_order_that_the_checkers_rely_on(make_benchmark) -> None:
    keys = [line.key for line in parsed(make_benchmark().events)]
    for first, then in (("global_batch_size", "opt_base_learning_rate"),
                        ("global_batch_size", "opt_gradient_clip_norm"),
                        ("num_prompts_per_step", "num_generations_per_prompt"), ("submission_division", "init_stop"),
                        ("global_batch_size", "num_generations_per_prompt")):
        assert keys.index(first) < keys.index(then)


def test_what_a_trainer_does_not_say_is_left_out(make_recording) -> None:
    header = values(parsed(make_recording(facts={"opt_name": "adamw"}).events))
    assert header["opt_name"] == "adamw"
    assert not header.keys() & {"micro_batch_size", "tensor_parallelism", "gradient_accumulation_steps"}


def test_before_any_validation_the_plan_says_how_many_tasks_there_are(make_recording) -> None:
    assert values(parsed(make_recording().events))["eval_samples"] == 251


def test_numbers_that_are_none_are_null(make_recording) -> None:
    run = make_recording()
    run.phase(Phase.ROLLOUT, 1)
    run.add(Kind.UPDATE, 1, loss=float("nan"), grad_norm=float("inf"), learning_rate=1e-6)
    run.add(Kind.STEP, 1, seconds=1.0, reward_mean=None)
    (stats, _) = [line.value for line in parsed(run.events) if line.key == "tracked_stats"]
    assert stats == dict.fromkeys(stats, None)


@pytest.mark.parametrize("status", [Status.FAILED, Status.INTERRUPTED])
def test_only_a_run_that_ran_to_its_end_has_one(make_benchmark, status: Status) -> None:
    run = make_benchmark([100], status=status)
    assert "run_stop" not in values(parsed(run.events))
    assert "run_stop" not in values(parsed(run.events[:-1]))
    assert values(parsed(run.events[:3])).keys() & {"run_start", "init_stop"} == {"run_start", "init_stop"}
    assert "run_start" not in values(parsed(run.events[:2]))


def test_a_run_without_a_target_is_over_but_no_success(make_benchmark) -> None:
    last = parsed(make_benchmark([100], status=Status.COMPLETED, target=None, metric=None).events)[-1]
    assert (last.key, last.metadata["status"]) == ("run_stop", "aborted")


def interrupted(run: Any, steps: int, checkpoints: int, cuts: list[int]) -> list[Event]:
    """``steps`` steps, validated each, a checkpoint every so many; in step ``cuts[n]`` the n-th attempt dies."""
    run.train(steps, checkpoints, cuts, lambda step: run.validate(step, 180 if step == steps else 100))
    run.end()
    return run.events


def untimed(found: list[Line]) -> list[tuple[str, str, Any, Any]]:
    return [(line.event_type, line.key, line.value, {
        key: value for key, value in line.metadata.items() if key != "lineno"}) for line in found]


@settings(max_examples=60)
@given(steps=st.integers(1, 8), checkpoints=st.integers(1, 4), cuts=st.lists(st.integers(1, 8), max_size=3))
def test_attempts_make_one_run(make_recording, steps: int, checkpoints: int, cuts: list[int]) -> None:
    whole = parsed(interrupted(make_recording(), steps, checkpoints, []))
    cut = make_recording()
    events = interrupted(cut, steps, checkpoints, list(cuts))
    found = parsed(events)
    assert untimed(found) == untimed(whole)
    assert audit("\n".join(map(str, found))) == ()
    assert found[1].time_ms == START_MS
    starts = [line.time_ms for line in found if line.key in ("init_stop", "run_start")]
    assert starts == [START_MS + 61_500] * 2
    for line in found[1:]:
        assert line.time_ms == START_MS or line.time_ms == _ms(events[line.metadata["lineno"] - 1])


@given(identity=st.builds(MllogConfig, org=st.text(min_size=1), platform=st.none() | st.text(min_size=1)))
def test_any_name_survives(make_recording, identity: MllogConfig) -> None:
    found = lines(make_recording().events, identity)
    assert all("\n" not in line for line in found)
    assert values([parse(line) for line in found])["submission_org"] == identity.org


def test_lines_are_a_function_of_events(make_benchmark) -> None:
    run = make_benchmark()
    before = json.dumps([event.data for event in run.events])
    assert lines(run.events, MllogConfig()) == lines(iter(run.events), MllogConfig())
    assert json.dumps([event.data for event in run.events]) == before


def _ms(event: Event) -> int:
    return round(datetime.fromisoformat(event.at).timestamp() * 1000)
