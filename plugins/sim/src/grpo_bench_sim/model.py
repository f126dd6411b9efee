"""How long things take: the model that a simulation goes by, as a small JSON file.

All times are seconds. A :class:`Law` is a distribution that one duration is drawn from, :class:`Linear` one that grows
with the work, times a lognormal factor with median 1. What a rollout takes is one law, divided among its hops by
:class:`Shares`; a stall comes on top, in the environment's time. ``like`` lists the settings under which the times were
measured, by dotted key of the profile: where a profile has others, what depends on them is an extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from grpo_bench.contract import InputError

from .laws import Amount, Count, Law, Linear, Lognormal, Part, Positive, Sigma

Seconds = Amount
Bytes = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Quantity(StrEnum):
    """What a model has a law for, by the name that outputs call it."""

    START = "start"
    ROLLOUT = "rollout"
    STALLS = "stalls"
    LOG_PROBABILITIES = "log-probabilities"
    DRIVER = "driver"
    UPDATE = "update"
    FIRST_STEP = "first step"
    REFIT = "refit"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    SHUTDOWN = "shutdown"


BATCH = frozenset({"grpo.prompts_per_step", "grpo.generations_per_prompt"})
"""Settings that a model has a range for, its ``rows``, and no value."""


class Shares(Part):
    """How a rollout's time divides among its hops; they add up to 1."""

    sandbox_start: Share = 0.0
    generate: Share = 1.0
    environment: Share = 0.0
    score: Share = 0.0

    @model_validator(mode="after")
    def _whole(self) -> Shares:
        if abs(self.sandbox_start + self.generate + self.environment + self.score - 1) > 1e-6:
            raise ValueError("the shares of a rollout's time do not add up to 1")
        return self


class Rollouts(Part):
    """The rollouts of one purpose, in one step."""

    seconds: Law
    """Of one rollout, at the load of its calibration, stalls apart."""
    tokens: Law
    """Sampled tokens of one rollout."""
    shares: Shares = Shares()
    turns: Annotated[int, Field(ge=1, le=1000)] = 1
    """Turns that a rollout's time and tokens are cut into, alike."""


class Stalls(Part):
    """Rollouts that wait for something that is not the policy.

    ``order`` are seconds that the first attempt at the first rollout of the last prompt in each ``block`` of the
    training order waits, and its group with it, in every replica, times exp(``spread`` x normal); past its end it
    begins again. Besides, each rollout stalls with probability ``sudden_share``, for a draw of ``sudden``."""

    order: tuple[Seconds, ...] = ()
    block: Count = 16
    paired: Annotated[int, Field(ge=0)] = 0
    """How many blocks at the end of ``order`` the logs have only beside another, as the prompts of one step: of the two
    the slower one's stall is known, but not which one that is."""
    spread: Sigma = 0.0
    sudden_share: Share = 0.0
    sudden: Law = Lognormal(median=0.0)

    @model_validator(mode="after")
    def _enough(self) -> Stalls:
        if self.paired > len(self.order):
            raise ValueError(f"{self.paired} blocks are paired, of {len(self.order)}")
        return self


class First(Part):
    """What the first step of a process takes beyond a later one: compilation, caches, allocations."""

    log_probabilities: Seconds = 0.0
    update: Seconds = 0.0
    rollout: Seconds = 0.0
    """Before the first rollout can begin."""


Figure = Literal["step", "rollout", "refit", "run_minutes", "update", "rest", "first_step", "validation"]
"""What logs can be compared by; ``rest`` is what a step takes beyond its update, its refit and its waits."""


class Measured(Part):
    """What a quantity was in the logs: a sample, sorted, in seconds but where the name says otherwise."""

    batch: Count
    """Rollouts of a step."""
    replicas: tuple[int, ...]
    held_out: bool = False
    """Whether nothing of these replicas went into the model."""
    values: Mapping[Figure, tuple[Positive, ...]]

    @model_validator(mode="after")
    def _sorted(self) -> Measured:
        for name, values in self.values.items():
            if not values or list(values) != sorted(values):
                raise ValueError(f"the values of {name!r} are none, or not in order")
        return self


class Assumptions(Part):
    """What the data cannot identify. Each is a guess, and outputs say so."""

    load_requests: Positive = 32.0
    """Requests on an engine at which a token takes twice as long as alone."""
    scaling: Share = 1.0
    """Share of the ideal by which more GPUs make updates, and those of an engine its decoding, faster."""
    bytes_per_s: Positive = 5e9
    """At which a checkpoint is written."""
    weights_bytes: Bytes = 0.0
    """Of a checkpoint of the weights alone."""
    full_bytes: Bytes = 0.0
    """Of one with the optimizer's state."""


class Evaluated(Part):
    """The process of an evaluation that was deferred."""

    start: Law
    reading: Law
    """Of the weights of one step, all but their validation: from their folder into the engines, and what is recorded.
    """
    shutdown: Law


class Model(Part):
    name: str
    source: str
    """Where the times are from."""
    method: str
    date: str
    like: Mapping[str, Any]
    """Settings at calibration, by dotted key."""
    reads: Mapping[str, str] = {}
    """Dotted keys of the profile for what a simulation has to know of its parts: ``ranks`` (the trainer's GPUs),
    ``engines`` and ``engine_gpus`` (the generator's), ``timeout_s`` (the agent's own)."""
    needs: Mapping[Quantity, tuple[str, ...]]
    """Which settings of ``like``, or of the batch, each quantity's calibration depends on."""
    load: Positive
    """Requests on an engine at calibration."""
    rows: tuple[Count, Count]
    """Fewest and most rollouts of a step at calibration."""
    passes_after: Mapping[str, Count] = {}
    """Rollouts trained on, by rollouts of a step, when the target was met in the logs."""
    start: Law
    first: First = First()
    train: tuple[Rollouts, ...] = Field(min_length=1)
    """By step; the last also for those after it."""
    validation: tuple[Rollouts, ...] = Field(min_length=1)
    """By the version of the validated weights, from 0 on, likewise."""
    stalls: Stalls = Stalls()
    log_probabilities: Linear = Linear()
    update: Linear
    driver: Linear = Linear()
    """What the engine's process does in a step besides waiting."""
    refit: Law
    shutdown: Law = Lognormal(median=0.0)
    checkpoint: Law | None = None
    """None: by ``assumptions``."""
    checkpoint_weights: Law | None = None
    """Of one of the weights alone; None: as any checkpoint."""
    evaluation: Evaluated | None = None
    """None: it starts and ends as the training does, and reads weights as fast as they were written."""
    assumptions: Assumptions = Assumptions()
    assumed: Mapping[str, str] = {}
    """What is assumed and not measured, each with why: by dotted name in this model."""
    conditions: Mapping[str, tuple[str, ...]] = {}
    """What the logs ran under, as ``--set`` arguments to the profile, by rollouts of a step."""
    measured: tuple[Measured, ...] = ()
    """The logs' own figures, of the replicas that were fitted and of those that were held out."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Model:
        if self.rows[0] > self.rows[1]:
            raise ValueError("rows are not in order: the fewest are more than the most")
        for key, value in self.like.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"like: {key!r} is {value}")
            if key in self.reads.values() and isinstance(value, int | float) and value < 0:
                raise ValueError(f"like: {key!r} is negative: {value}")
        for quantity, keys in self.needs.items():
            if unknown := set(keys) - self.like.keys() - BATCH:
                raise ValueError(f"needs: {quantity} needs {min(unknown)!r}, which like does not have")
        for key in self.assumed:
            if key.partition(".")[0] not in Model.model_fields:
                raise ValueError(f"assumed: a model has no {key!r}")
        return self


def read_model(path: Path) -> Model:
    """InputError where it is no model."""
    try:
        return Model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the model {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        raise InputError(f"{path} is no model of times: {where}{': ' * bool(where)}"
                         f"{first['msg'].removeprefix('Value error, ')}") from error
