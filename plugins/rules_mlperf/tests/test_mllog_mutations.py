"""A good log, changed in one way: what the official checker says about it, and what ours does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.audit import audit
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.official import judge_log, missing
from grpo_bench_rules_mlperf.training_6_1 import RULES

pytestmark = pytest.mark.skipif(bool(missing(RULES)), reason=missing(RULES))
MALFORMED = "*"
"""Stands for a refusal that is about no key."""
HALF_AN_HOUR, LONG_AGO = 1801.0, 1_700_000_000_000

Log = list[Line]
Change = Callable[[Log], None]
EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")


def text(log: Log) -> str:
    return "".join(f"{line}\n" for line in log)


def change(key: str, number: int = 0, metadata: dict[str, Any] | None = None, **values: Any) -> Change:
    """Give the ``number``-th line of ``key`` other values."""
    def act(log: Log) -> None:
        at = [index for index, line in enumerate(log) if line.key == key][number]
        log[at] = replace(log[at], metadata={**log[at].metadata, **(metadata or {})}, **values)

    return act


def without(key: str, name: str) -> Change:
    """Take a member of the metadata out of every line of ``key``."""
    def act(log: Log) -> None:
        log[:] = [replace(line, metadata={other: value for other, value in line.metadata.items() if other != name})
                  if line.key == key else line for line in log]

    return act


def drop(*keys: str) -> Change:
    def act(log: Log) -> None:
        log[:] = [line for line in log if line.key not in keys]

    return act


def swap(first: str, second: str) -> Change:
    """The first lines of two keys change places, each keeping the other's time."""
    def act(log: Log) -> None:
        a, b = (next(index for index, line in enumerate(log) if line.key == key) for key in (first, second))
        log[a], log[b] = replace(log[b], time_ms=log[a].time_ms), replace(log[a], time_ms=log[b].time_ms)

    return act


def move(key: str, behind: str) -> Change:
    """The first line of ``key`` goes right behind that of another, with its time."""
    def act(log: Log) -> None:
        moved = log.pop(next(index for index, line in enumerate(log) if line.key == key))
        at = next(index for index, line in enumerate(log) if line.key == behind)
        log.insert(at + 1, replace(moved, time_ms=log[at].time_ms))

    return act


def once_more(key: str, **values: Any) -> Change:
    """The first line of ``key`` a second time, with other values."""
    def act(log: Log) -> None:
        at = next(index for index, line in enumerate(log) if line.key == key)
        log.insert(at, replace(log[at], **values))

    return act


def late(key: str, seconds: float) -> Change:
    """Everything from the first line of ``key`` on happens later."""
    def act(log: Log) -> None:
        at = next(index for index, line in enumerate(log) if line.key == key)
        log[at:] = [replace(line, time_ms=line.time_ms + round(1000 * seconds)) for line in log[at:]]

    return act


def at_the_time_of(key: str, other: str, number: int = 0) -> Change:
    """The first line of ``key`` gets the time of the ``number``-th of another."""
    def act(log: Log) -> None:
        change(key, time_ms=[line for line in log if line.key == other][number].time_ms)(log)

    return act


def go_on(log: Log) -> None:
    """Another evaluation after the one that passed."""
    stop = log.pop()
    count = next(line for line in log if line.key == "global_batch_size").value
    last = [line for line in log if line.key in EVALUATION][-3:]
    step = last[0].metadata["step"] + 1
    log += [replace(line, time_ms=last[-1].time_ms, metadata={**line.metadata, "step": step,
                                                              "samples_count": step * count}) for line in last]
    trained = next(line for line in log if line.key == "block_stop").time_ms
    log.append(replace(stop, time_ms=trained, metadata={**stop.metadata, "step": step, "samples_count": step * count}))


def skip_the_first(log: Log) -> None:
    """Without the evaluation that failed."""
    for key in EVALUATION:
        log.remove(next(line for line in log if line.key == key))


OF_THE_BATCH = {"eval_accuracy", "num_generations_per_prompt", "opt_base_learning_rate", "opt_gradient_clip_norm"}
"""What the official checker holds against the batch."""
CHANGES: dict[str, tuple[Change, set[str], set[str]]] = {
    "nothing": (lambda log: None, set(), set()),
    "learning rate before batch": (move("global_batch_size", "opt_base_learning_rate"),
        {"opt_base_learning_rate"}, set()),
    "clip before batch": (move("global_batch_size", "opt_gradient_clip_norm"),
        {"opt_base_learning_rate", "opt_gradient_clip_norm"}, set()),
    "batch after the group's size": (move("global_batch_size", "num_generations_per_prompt"),
        {"num_generations_per_prompt", "opt_base_learning_rate", "opt_gradient_clip_norm"}, set()),
    "group size before prompts": (swap("num_prompts_per_step", "num_generations_per_prompt"),
        {"num_generations_per_prompt"}, set()),
    "division after set-up": (move("submission_division", "init_stop"), {"init_stop"}, set()),
    "a long set-up": (late("init_stop", HALF_AN_HOUR), {"init_stop"}, set()),
    "another name of a precision": (change("lowest_numerical_precision_in_attn", value="bf16"),
        {"lowest_numerical_precision_in_attn"}, set()),
    "no precision": (drop("lowest_numerical_precision_in_comm"), {"lowest_numerical_precision_in_comm"}, set()),
    "no config": (drop("config_filename"), {"config_filename"}, set()),
    "an empty config": (change("config_filename", value=""), {"config_filename"}, set()),
    "an empty org": (change("submission_org", value=""), {"submission_org"}, set()),
    "another division": (change("submission_division", value="half-open"), {MALFORMED}, set()),
    "another benchmark": (change("submission_benchmark", value="flux2"), {MALFORMED}, set()),
    "older validation set": (change("eval_samples", value=256), {"eval_samples"}, set()),
    "a number as text": (change("eval_samples", value="251"), {"eval_samples"}, set()),
    "a shorter context": (change("max_sequence_length", value=32_768), {"max_sequence_length"}, set()),
    "another validation temperature": (change("generation_validation_rollout_temperature", value=0.6),
        {"generation_validation_rollout_temperature"}, set()),
    "smaller groups": (change("num_generations_per_prompt", value=8), {"num_generations_per_prompt"}, set()),
    "no accumulation": (change("gradient_accumulation_steps", value=0), {"gradient_accumulation_steps"}, set()),
    "a batch of 0": (change("global_batch_size", value=0), {"global_batch_size", *OF_THE_BATCH}, {"samples", "series"}),
    "a batch as text": (change("global_batch_size", value="256"),
        {"global_batch_size", *OF_THE_BATCH}, {"samples", "series"}),
    "another batch": (change("global_batch_size", value=128), OF_THE_BATCH, {"samples", "series"}),
    "another learning rate": (change("opt_base_learning_rate", value=2e-6),
        {"opt_base_learning_rate"}, {"learning rate"}),
    "no end learning rate": (drop("opt_end_learning_rate"), set(), {"learning rate"}),
    "a rate that does not stay": (change("opt_end_learning_rate", value=0.0), set(), {"learning rate"}),
    "no seed": (drop("seed"), set(), {"seed"}),
    "two seeds": (once_more("seed", value=8), set(), {"seed"}),
    "the seed twice": (once_more("seed"), set(), {"seed"}),
    "a seed as text": (change("seed", value="7"), set(), {"seed"}),
    "a seed that is too large": (change("seed", value=2**32), set(), {"seed"}),
    "a seed below 0": (change("seed", value=-1), set(), {"seed"}),
    "a value twice": (once_more("max_steps"), {"max_steps"}, set()),
    "two values": (once_more("max_steps", value=31), {"max_steps"}, set()),
    "no target": (drop("target_accuracy"), set(), set()),
    "a lower target": (change("target_accuracy", value=0.6), set(), {"accuracy", "status"}),
    "no status": (without("run_stop", "status"), {"run_stop"}, {"status"}),
    "another status": (change("run_stop", metadata={"status": "done"}), set(), {"status"}),
    "a success called aborted": (change("run_stop", metadata={"status": "aborted"}), set(), {"status"}),
    "success that was none": (change("eval_accuracy", 1, value=173 / 251), {"eval_accuracy"}, {"status"}),
    "a share that meets it by a hair": (change("eval_accuracy", 1, value=0.69), {"eval_accuracy"}, {"accuracy"}),
    "a share of other tasks": (change("eval_accuracy", 1, value=0.7), set(), {"accuracy"}),
    "more than all tasks": (change("eval_accuracy", 1, value=1.2), {"eval_accuracy"}, {"accuracy"}),
    "accuracy as text": (change("eval_accuracy", 1, value="0.717"), {MALFORMED}, {"accuracy", "status"}),
    "a success that is hidden": (change("eval_accuracy", 0, value=174 / 251), set(), {"status"}),
    "the failing first left out": (skip_the_first, {"eval_accuracy"}, {"series"}),
    "an evaluation after the passing one": (go_on, set(), {"status"}),
    "no evaluation": (drop("eval_start", "eval_accuracy", "eval_stop"), {"eval_accuracy"}, {"status", "times"}),
    "an evaluation without a result": (drop("eval_accuracy"), {"eval_accuracy"}, {"order", "status"}),
    "an evaluation without samples": (without("eval_accuracy", "samples_count"),
        {"eval_accuracy"}, {"samples", "series"}),
    "samples as text": (change("eval_accuracy", metadata={"samples_count": "4608"}),
        {"eval_accuracy"}, {"samples", "series"}),
    "an evaluation too early": (change("eval_accuracy", metadata={"samples_count": 17 * 256, "step": 17}),
        {"eval_accuracy"}, {"series"}),
    "an evaluation twice": (change("eval_accuracy", 1, metadata={"samples_count": 18 * 256, "step": 18}),
        {"eval_accuracy"}, {"samples", "series"}),
    "samples between steps": (change("tracked_stats", metadata={"samples_count": 100}), set(), {"samples"}),
    "another step's samples": (change("tracked_stats", metadata={"step": 3}), set(), {"samples"}),
    "a step that is none": (change("tracked_stats", metadata={"step": None}), set(), {"samples"}),
    "the end of other weights": (change("run_stop", metadata={"samples_count": 18 * 256, "step": 18}),
        set(), {"samples", "times"}),
    "no end": (drop("run_stop"), {"run_stop"}, {"order"}),
    "two ends": (once_more("run_stop"), {"run_stop"}, {"order", "times"}),
    "no beginning": (drop("run_start"), {"block_start", "run_start", "run_stop"}, {"order"}),
    "an end before the beginning": (swap("run_start", "run_stop"), {"block_start", "run_stop"}, {"order", "times"}),
    "a time before the beginning": (change("run_stop", time_ms=LONG_AGO), set(), {"times"}),
    "the time of the evaluation": (at_the_time_of("run_stop", "eval_stop", 1), set(), {"times"}),
    "the time of the first statistics": (at_the_time_of("run_stop", "tracked_stats"), set(), {"times"}),
    "the time of the step's statistics": (at_the_time_of("run_stop", "tracked_stats", 36), set(), set()),
    "the time of the last update": (at_the_time_of("run_stop", "block_stop"), set(), {"times"}),
    "training that ends late": (at_the_time_of("block_stop", "eval_stop"), set(), {"times"}),
    "times that go back": (change("eval_stop", time_ms=LONG_AGO), set(), {"times"}),
    "statistics after the end": (move("tracked_stats", "run_stop"), set(), {"order", "times"}),
    "no block": (drop("block_start", "block_stop"), {MALFORMED}, {"order"}),
    "a block that does not end": (drop("block_stop"), {MALFORMED}, {"order"}),
    "no set-up": (drop("init_start"), {"init_start", "init_stop"}, {"order"}),
    "no cache_clear": (drop("cache_clear"), {"cache_clear"}, {"order"}),
    "a point for an interval": (change("run_stop", event_type="POINT_IN_TIME"), set(), {"event types"}),
    "an unknown type": (change("seed", event_type="POINT"), set(), {"event types"}),
}
"""What is done, which keys the official checker refuses for it, and which of our checks do."""


@pytest.fixture(scope="module")
def good(make_deferred) -> Log:
    """Evaluations of steps 18 and 19, the second of which passes, after a training of 20 steps."""
    return [parse(line) for line in lines(make_deferred([160, 180]).events, MllogConfig())]


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_gets_its_verdict(good: Log, tmp_path: Path, name: str) -> None:
    act, official, ours = CHANGES[name]
    act(good := list(good))
    file = tmp_path / "result.txt"
    file.write_text(text(good))
    verdict = judge_log(file, RULES)
    assert {*verdict.refused, *([MALFORMED] if verdict.other else [])} == official, verdict
    found = audit(text(good), strict=RULES)
    assert {finding.rule.removeprefix("mllog ") for finding in found} == ours, found
    assert not any(finding.ok for finding in found)


def test_each_of_our_checks_finds_what_the_official_one_does_not() -> None:
    alone = {name for _, official, ours in CHANGES.values() if not official for name in ours}
    assert alone == {"event types", "times", "seed", "order", "status", "learning rate", "samples", "accuracy"}


IN_TURNS: dict[str, tuple[Change, set[str]]] = {
    "nothing": (lambda log: None, {"deferral"}),
    "an evaluation after the passing one": (go_on, {"order", "status", "times"}),
    "a block that does not end": (drop("block_stop"), {"order", "deferral"}),
    "an end inside an evaluation": (drop("eval_stop"), {"order", "deferral"}),
    "an end before its evaluation": (change("run_stop", time_ms=LONG_AGO), {"order", "times"}),
    "an end that is early": (at_the_time_of("run_stop", "tracked_stats", 35), {"order", "times"}),
    "an end before the evaluation's": (at_the_time_of("run_stop", "eval_start", 1), {"times", "deferral"}),
    "an end of other weights": (change("run_stop", metadata={"samples_count": 18 * 256, "step": 18}),
                                {"samples", "deferral"}),
    "no evaluation": (drop(*EVALUATION), {"order", "status"}),
}


@pytest.mark.parametrize("name", IN_TURNS)
def test_logs_whose_evaluations_take_turns_with_training(make_benchmark, name: str) -> None:
    log = [parse(line) for line in lines(make_benchmark([160, 180]).events, MllogConfig())]
    act, ours = IN_TURNS[name]
    act(log)
    found = audit(text(log), strict=RULES)
    assert {finding.rule.removeprefix("mllog ") for finding in found} == ours, found
