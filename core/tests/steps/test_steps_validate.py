"""Validation reports, targets on integers, the schedule, and the share of failed rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo_bench.contract import (
    Cause, End, Failure, Group, PlanError, Position, Purpose, RolloutShareExceeded, Trajectory, ValidationSettings,
)
from grpo_bench.steps import check_failed_share, summarize, target_met, validation_report


def rollout(task: str, reward: float | None) -> Trajectory:
    end, failure = (End.COMPLETED, None) if reward is not None else (End.FAILED, Failure(Cause.SCORE, "no grade"))
    return Trajectory("r", 0, task, Purpose.VALIDATION, (), end, reward, failure)


def groups_of(*rewards: Sequence[float | None]) -> list[Group]:
    return [Group(index, f"t{index}", Position(0, index), 0, tuple(rollout(f"t{index}", value) for value in row))
            for index, row in enumerate(rewards)]


def test_metrics_of_a_report() -> None:
    report = validation_report(5, 5, groups_of([1, 0], [0, 0], [1, 1], [0, 1]), 2, 1.5)
    assert dict(report.metrics) == {"accuracy": 0.5, "pass_k": 0.75, "pass_hat_k": 0.25, "pass_1": 0.5}
    assert (report.passed, report.tasks, report.standard_error) == (3, 4, pytest.approx(0.25))
    assert dict(report.ends) == {"completed": 8}


def test_with_one_rollout_per_task_only_accuracy_is_reported() -> None:
    report = validation_report(5, 5, groups_of([1], [0]), 1, 1.0)
    assert dict(report.metrics) == {"accuracy": 0.5}
    with pytest.raises(PlanError, match="accuracy"):
        target_met(report, "pass_k", 0.5)


def test_a_rollout_without_a_reward_is_no_success_and_no_zero() -> None:
    report = validation_report(5, 5, groups_of([1, None], [None, None]), 2, 1.0)
    assert dict(report.metrics) == {"accuracy": 1.0, "pass_k": 0.5, "pass_hat_k": 0.0, "pass_1": 0.25}
    assert dict(report.ends) == {"completed": 1, "failed": 3}


@pytest.mark.parametrize(("passed", "tasks", "target", "met"), [
    (69, 100, 0.69, True), (68, 100, 0.69, False), (7, 10, 0.7, True), (1, 3, 1 / 3, True), (176, 256, 0.69, False),
])
def test_targets_are_compared_exactly(passed: int, tasks: int, target: float, met: bool) -> None:
    report = validation_report(1, 1, groups_of(*[[1, 1]] * passed, *[[0, 0]] * (tasks - passed)), 2, 1.0)
    for metric in report.metrics:
        assert target_met(report, metric, target) is met


@pytest.mark.parametrize(("groups", "message"), [
    ([[rollout("a", 1)]], "needs 2 rollouts"),
    ([[rollout("a", 1), rollout("b", 1)]], "of one task"),
    ([[rollout("a", 1)] * 2] * 2, "more than once"),
])
def test_rollouts_that_are_no_k_of_one_task_are_refused(groups: list[list[Trajectory]], message: str) -> None:
    found = [Group(index, "a", Position(0, index), 0, tuple(group)) for index, group in enumerate(groups)]
    with pytest.raises(ValueError, match=message):
        validation_report(1, 1, found, 2, 1.0)


def test_the_start_does_not_shift_the_cadence() -> None:
    settings = ValidationSettings(start_at=7, period=5, at_end=True)
    assert [step for step in range(24) if settings.is_due(step, 23)] == [10, 15, 20, 23]
    at_start = ValidationSettings(at_start=True, period=10)
    assert [step for step in range(24) if at_start.is_due(step, 23)] == [0, 10, 20]


def test_the_share_of_failures_is_bounded_and_explained() -> None:
    rollouts = [rollout("a", 1), rollout("a", None), rollout("b", 0), rollout("b", 1)]
    assert check_failed_share(rollouts, 0.25, 3) == summarize(rollouts)
    with pytest.raises(RolloutShareExceeded, match=r"1 of 4 .* 1 score.* no grade .*role environment, task a, step 3"):
        check_failed_share(rollouts, 0.2, 3)
