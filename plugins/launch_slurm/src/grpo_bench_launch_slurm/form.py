"""A job as it is decided before Slurm hears of it: what is asked for, what runs, for how long.

Everything about the run comes from its plan, everything about the cluster from the site file's ``[launch]``. Nothing
here touches a disk or a cluster. A job has a batch script of its own; a replica has one job that trains, and one more
that evaluates where that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_bench.contract import InputError, Role

from . import container

if TYPE_CHECKING:
    from grpo_bench.registry import Plan
    from grpo_bench.registry.estimate import Estimate
    from grpo_bench.registry.site_tables import Launch

RESERVED = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "GRPO_BENCH_CONTAINER_DIGEST", "GRPO_BENCH_TOPOLOGY",
            "GRPO_BENCH_SITE")
"""Variables that a job's script or this package sets."""
SETTLED = ("array", "chdir", "dependency", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable",
           "requeue", "no-requeue", "no-kill", "segment", "signal", "time", "wrap")
SETTLED_SHORT = ("-a", "-D", "-d", "-N", "-n", "-o", "-t", "-k")
"""Options of a submission that a site cannot give: they are the plan's, or the script relies on them. What pyxis adds
(--container-...) would lie over the image."""
SHORTEST_STOP_S = 120
"""What a run that saves nothing at its end is given to come to one."""
MOST_STOP_S = 65_535
"""Slurm knows no earlier signal."""
UNKNOWN_STOP_S = 900
"""What a run is given to end its step where nobody knows how long that takes."""


class Evaluation(StrEnum):
    """Where a deferred evaluation takes place: in the job that trained, in one that waits for it, or in none."""

    SAME = "same"
    DEPENDENT = "dependent"
    NONE = "none"


class Purpose(StrEnum):
    """What a job does; the file of its script is called so."""

    TRAIN = "train"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class Job:
    """One job. ``stop_s`` seconds before its end the driver gets ``stop_signal``; ``requeue``: it may start again and
    goes on then. ``first_command`` begins the run, ``resume_options`` are those with which a later start goes on."""

    name: str
    purpose: Purpose
    folder: Path
    nodes: int
    gpus: int
    segment: int
    ray: bool
    minutes: int | None
    stop_signal: str
    stop_s: int
    requeue: bool
    spares: bool
    start_s: int
    environment: Mapping[str, str]
    container: tuple[str, ...]
    within: tuple[str, ...]
    path: str
    first_command: tuple[str, ...]
    resume_options: tuple[str, ...]

    @property
    def script(self) -> Path:
        return self.folder / f"{self.purpose}.sh"


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asks for. ``selection`` are the options that choose the profile, as ``run`` takes them;
    ``files`` those they name; ``path`` is where this program's own commands are."""

    selection: tuple[str, ...]
    files: tuple[Path, ...]
    evaluation: Evaluation
    minutes: int | None
    path: str


def jobs(plan: Plan, launch: Launch, order: Order, folder: Path, replica: int, seed: int) -> tuple[Job, ...]:
    """The jobs of one replica, in the order in which they are submitted."""
    train = _job(plan, launch, order, folder, replica, seed, Purpose.TRAIN)
    if order.evaluation is not Evaluation.DEPENDENT:
        return (train,)
    return train, _job(plan, launch, order, folder, replica, seed, Purpose.EVALUATE)


def check(plan: Plan, launch: Launch, order: Order) -> None:
    """InputError where what is asked for cannot be, whatever the cluster."""
    if order.evaluation is not Evaluation.SAME and not plan.profile.validation.deferred:
        raise InputError(f"--eval {order.evaluation}: profile {plan.name!r} validates while it trains, so nothing is "
                         "left to evaluate", hint="leave --eval out, or see validation.deferred")
    if wrong := [option for option in launch.arguments if _is_settled(option)]:
        raise InputError(f"launch.arguments: {', '.join(wrong)}: what a job takes, runs and writes is settled by its "
                         "plan and its script", hint="leave it out; launch.minutes is the wall time, launch.stop_s the "
                         "time of the signal, and settings of the hardware are the profile's")
    if wrong := [name for name in launch.environment if name in RESERVED or name.startswith("SLURM_")]:
        raise InputError(f"launch.environment: {', '.join(wrong)} cannot be set there", hint="jobs set it themselves")
    if wrong := [f"{name} = {launch.environment[name]!r}, and the hardware needs {value!r}"
                 for name, value in plan.form.env.items() if launch.environment.get(name, value) != value]:
        raise InputError(f"launch.environment: {'; '.join(wrong)}", hint="leave it out of the site file")
    container.check(plan, launch)


def _is_settled(option: str) -> bool:
    """Long options may be cut short, and short ones have their value right behind them."""
    name = option.partition("=")[0].split()[0]
    return (option[:2] in SETTLED_SHORT or name.startswith("--container")
            or (name.startswith("--") and any(f"--{known}".startswith(name) for known in SETTLED)))


def reaches_hosts(plan: Plan) -> bool:
    return plan.parts[Role.FABRIC].descriptor.capabilities.hosts


def goes_on(plan: Plan) -> bool:
    """Whether a training that was cut off can be gone on with."""
    return plan.profile.checkpoint.period > 0


def wall_minutes(plan: Plan, launch: Launch, minutes: int | None) -> int | None:
    """Wall time of a job: the command line's, else the site's, else what such runs are given; None: the partition's."""
    given = plan.estimate.wall_s if plan.estimate else 0
    return minutes or launch.minutes or (math.ceil(given / 60) or None)


def stop_seconds(plan: Plan, launch: Launch, minutes: int | None, evaluates: bool) -> int:
    """How long before its end a job is told: long enough for the longest step, its validation and a checkpoint, at most
    half of its time. What saves nothing then, or can stop at once, needs no step."""
    most = MOST_STOP_S if minutes is None else min(MOST_STOP_S, minutes * 30)
    if launch.stop_s is not None:
        return min(most, launch.stop_s)
    if evaluates or not goes_on(plan):
        return min(most, SHORTEST_STOP_S)
    if plan.estimate is None:
        return min(most, UNKNOWN_STOP_S)
    return min(most, SHORTEST_STOP_S + math.ceil(_last_step(plan, plan.estimate)))


def _last_step(plan: Plan, estimate: Estimate) -> float:
    """Seconds of a step twice as long as they are at most on average, and of its checkpoint and validation."""
    steps, validation = plan.profile.grpo.max_steps, plan.profile.validation
    checkpoint = estimate.checkpoints.most / (steps // plan.profile.checkpoint.period or 1)
    due = sum(validation.is_due(step, steps) for step in range(1, steps + 1))
    validating = 0.0 if validation.deferred else estimate.evaluation.most / (due or 1)
    return 2 * estimate.training.most / steps + checkpoint + validating


def _job(plan: Plan, launch: Launch, order: Order, folder: Path, replica: int, seed: int, purpose: Purpose) -> Job:
    form, minutes = plan.form, wall_minutes(plan, launch, order.minutes)
    evaluates, left = purpose is Purpose.EVALUATE, order.evaluation is not Evaluation.SAME
    mounts = container.mounts(launch, folder.parent, order.files)
    environment = {**form.env, **launch.environment, **container.environment(launch)}
    options = ("--no-eval",) if left else ()
    command = ("grpo-bench", "run", *order.selection, "--seed", str(seed), "--runs", str(folder), *options)
    return Job(
        name=f"{plan.name}.{replica}{'.eval' if evaluates else ''}", purpose=purpose, folder=folder, nodes=form.nodes,
        gpus=form.gpus, segment=form.segment, ray=reaches_hosts(plan), minutes=minutes,
        stop_signal="USR1" if goes_on(plan) and not evaluates else "TERM",
        stop_s=stop_seconds(plan, launch, minutes, evaluates), requeue=evaluates or goes_on(plan),
        spares=any(placement.spares for placement in plan.placements.values()),
        start_s=math.ceil(plan.profile.limits.start_s), environment=environment,
        container=container.srun_options(launch, mounts, folder),
        within=container.prefix(launch, mounts, folder, form.gpus), path="" if launch.container else order.path,
        first_command=command, resume_options=options)


def selection(profile: str, division: str | None, overrides: Sequence[str], site: Path | None,
              registry: Path | None) -> tuple[str, ...]:
    """The options with which ``run`` chooses the same, wherever it is started."""
    named = {"--profile": profile, "--division": division, "--site": site and site.absolute(),
             "--registry": registry and registry.absolute()}
    words = [word for option, value in named.items() if value is not None for word in (option, str(value))]
    return (*words, *(word for override in overrides for word in ("--set", override)))
