"""The reference's public logs, as ``rcp_steps.csv``, ``rcp_evals.csv`` and ``rcp_runs.csv`` have them. Seconds.

The rows of steps lack each run's last: of that one only its wall clock is known. What a step spends in no logged
statistic, and between steps, is kept apart from what it waits for rollouts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from grpo_bench.contract import InputError
from grpo_bench_sim.model import Figure, Measured

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """``rest`` is in no statistic of the step, ``outside`` between it and the one before. ``tokens`` are those of the
    ``valid`` samples."""

    wall: float
    exposed: float
    update: float
    refit: float
    rest: float
    outside: float
    tokens: float
    valid: int


@dataclass(frozen=True, slots=True)
class Replica:
    """``first`` is from the end of the start-up to the end of the first step, of which ``before`` goes by before the
    step begins; ``last`` the wall clock of the last step, up to its validation."""

    batch: int
    number: int
    start: float
    first: float
    before: float
    last: float
    validation: float
    minutes: float
    steps: tuple[LoggedStep, ...]

    @property
    def last_exposed(self) -> float:
        """The last step's wait: what it takes beyond what others do besides waiting."""
        return self.last - median(step.wall - step.exposed for step in self.steps[1:])


def read_logs(folder: Path) -> list[Replica]:
    steps, evaluations = _rows(folder / "rcp_steps.csv"), _rows(folder / "rcp_evals.csv")
    return [_replica(row, [step for step in steps if _name(step) == _name(row)],
                     next(found for found in evaluations if _name(found) == _name(row)))
            for row in _rows(folder / "rcp_runs.csv")]


def _rows(file: Path) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def _name(row: Row) -> tuple[str, str]:
    return row["gbs"], row["replica"]


def _replica(row: Row, steps: Iterable[Row], evaluation: Row) -> Replica:
    return Replica(
        batch=int(row["gbs"]), number=int(row["replica"]), start=60 * float(row["init_min"]),
        first=float(row["first_step_wall_s"]), before=float(row["first_step_pre_s"]),
        last=float(row["last_step_wall_s"]), validation=float(evaluation["eval_duration_s"]),
        minutes=float(row["run_min"]), steps=tuple(map(_step, sorted(steps, key=lambda step: int(step["step"])))))


def _step(row: Row) -> LoggedStep:
    return LoggedStep(
        wall=float(row["wall_gap_s"]), exposed=float(row["exposed_generation_time"]),
        update=float(row["policy_training_time"]), refit=float(row["weight_sync_time"]),
        rest=float(row["unaccounted_in_step_s"]), outside=float(row["outside_step_s"]),
        tokens=float(row["global_valid_toks"]), valid=int(float(row["global_valid_seqs"])))


def measured(replicas: Iterable[Replica], *, held_out: bool) -> Measured:
    """The figures of replicas of one batch: sorted, of steps from the second on, whole and waiting of the last too."""
    replicas = list(replicas)
    steps = [step for replica in replicas for step in replica.steps[1:]]
    values: dict[Figure, list[float]] = {
        "step": [step.wall for step in steps] + [replica.last for replica in replicas],
        "rollout": [step.exposed for step in steps] + [replica.last_exposed for replica in replicas],
        "rest": [step.rest + step.outside for step in steps],
        "update": [step.update for step in steps],
        "refit": [step.refit for step in steps],
        "run_minutes": [replica.minutes for replica in replicas],
        "first_step": [replica.first for replica in replicas],
        "validation": [replica.validation for replica in replicas],
    }
    return Measured(batch=replicas[0].batch, replicas=tuple(replica.number for replica in replicas),
                    held_out=held_out, values={name: tuple(sorted(round(value, 1) for value in found))
                                               for name, found in values.items()})
