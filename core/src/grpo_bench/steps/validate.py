"""Validation of one weight version: k rollouts of each task, kept together, counted on integers.

pass_k: share of tasks with at least one success (reward > 0) among k. pass_hat_k: with k of k. pass_1: share of
rollouts that succeed. accuracy: mean reward of the samples. A rollout without a reward is no success, and its task
stays in every denominator. Whether a target is met is decided on fractions, never on rounded floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import Group, PlanError, Trajectory, ValidationReport

from .reward import rewards_of


def validation_report(step: int, version: int, groups: Sequence[Group], k: int, seconds: float) -> ValidationReport:
    """The report on one group of k rollouts per task."""
    runs = [group.trajectories for group in groups]
    if not runs:
        raise ValueError("a validation needs at least one task")
    _check_runs(runs, k)
    rewards = np.stack([rewards_of(run) for run in runs])
    success = rewards > 0
    solved: npt.NDArray[np.bool_] = np.any(success, axis=1)
    passed = int(solved.sum())
    present = rewards[~np.isnan(rewards)]
    metrics = {"accuracy": float(present.mean()) if len(present) else 0.0}
    if k > 1:
        metrics |= {"pass_k": passed / len(runs), "pass_hat_k": int(success.all(axis=1).sum()) / len(runs),
                    "pass_1": int(success.sum()) / success.size}
    return ValidationReport(
        step=step, version=version, k=k, tasks=len(runs), passed=passed, metrics=metrics,
        standard_error=_standard_error(solved if k > 1 else np.nan_to_num(rewards[:, 0])), seconds=seconds,
        ends=dict(Counter(trajectory.end.value for run in runs for trajectory in run)),
    )


def target_met(report: ValidationReport, metric: str, target: float) -> bool:
    """Whether the metric is at least the target, both as exact fractions; the target as its decimal text reads."""
    if metric not in report.metrics:
        raise PlanError(f"validation reports no {metric!r}; it reports {', '.join(report.metrics)}")
    return _exact(report, metric) >= Fraction(repr(float(target)))


def _exact(report: ValidationReport, metric: str) -> Fraction:
    """The metric as the fraction of counts that it is; a mean of rewards that are no integers as the float it is."""
    if metric == "pass_k":
        return Fraction(report.passed, report.tasks)
    value = report.metrics[metric]
    fraction = Fraction(value).limit_denominator(report.tasks * report.k)
    return fraction if float(fraction) == value else Fraction(value)


def _standard_error(values: npt.NDArray) -> float:
    """Of the mean over tasks; 0 for a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _check_runs(runs: Sequence[tuple[Trajectory, ...]], k: int) -> None:
    for run in runs:
        tasks = {trajectory.task_id for trajectory in run}
        if len(run) != k or len(tasks) != 1:
            raise ValueError(f"a validation group needs {k} rollouts of one task; got {len(run)} of {sorted(tasks)}")
    repeated = [task for task, count in Counter(run[0].task_id for run in runs).items() if count > 1]
    if repeated:
        raise ValueError(f"tasks validated more than once: {', '.join(repeated[:5])}")
