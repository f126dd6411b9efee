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
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grpo_bench.contract import InputError

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Lognormal(_Part):
    kind: Literal["lognormal"] = "lognormal"
    median: Seconds
    sigma: Seconds = 0.0
    """Standard deviation of the logarithm; 0: always the median."""
    most: Positive | None = None
    """No draw is above this."""

    def draw(self, random: Random) -> float:
        drawn = self.median * math.exp(self.sigma * random.gauss(0.0, 1.0)) if self.sigma else self.median
        return drawn if self.most is None else min(drawn, self.most)

    @property
    def middle(self) -> float:
        return self.median


class Recorded(_Part):
    """Any of the values that were seen, each as likely."""

    kind: Literal["recorded"] = "recorded"
    values: tuple[Seconds, ...] = Field(min_length=1)

    def draw(self, random: Random) -> float:
        return self.values[random.randrange(len(self.values))]

    @property
    def middle(self) -> float:
        return sorted(self.values)[len(self.values) // 2]


class Quantiles(_Part):
    """A distribution through quantiles of ``count`` values that were seen, the least and the greatest among them. As
    many draws as that have, in the mean, about the same maximum: one may be beyond the greatest."""

    kind: Literal["quantiles"] = "quantiles"
    values: tuple[Seconds, ...] = Field(min_length=1)
    """In order, evenly spaced in rank."""
    count: Annotated[int, Field(ge=1)]

    def draw(self, random: Random) -> float:
        rank = random.random() * (self.count + 1) - 1
        last = len(self.values) - 1
        if not last:
            return self.values[0]
        place = rank * last / (self.count - 1)
        below = min(max(int(place), 0), last - 1)
        return max(0.0, self.values[below] + (place - below) * (self.values[below + 1] - self.values[below]))

    @property
    def middle(self) -> float:
        return self.values[len(self.values) // 2]

    @model_validator(mode="after")
    def _ordered(self) -> Quantiles:
        if list(self.values) != sorted(self.values):
            raise ValueError("quantiles are not in order")
        if self.count < len(self.values):
            raise ValueError("there are more quantiles than values were seen")
        return self


Law = Annotated[Lognormal | Recorded | Quantiles, Field(discriminator="kind")]


class Linear(_Part):
    """``fixed`` + ``per_row`` x rows + ``per_token`` x sampled tokens, times a factor exp(sigma x normal)."""

    fixed: Seconds = 0.0
    per_row: Seconds = 0.0
    per_token: Seconds = 0.0
    sigma: Seconds = 0.0

    def draw(self, random: Random, rows: int, tokens: float) -> float:
        middle = self.fixed + self.per_row * rows + self.per_token * tokens
        return middle * math.exp(self.sigma * random.gauss(0.0, 1.0)) if self.sigma else middle


class Shares(_Part):
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


class Rollouts(_Part):
    """The rollouts of one purpose, in one step."""

    seconds: Law
    """Of one rollout, at the load of its calibration, stalls apart."""
    tokens: Law
    """Sampled tokens of one rollout."""
    shares: Shares = Shares()
    turns: Annotated[int, Field(ge=1, le=1000)] = 1
    """Turns that a rollout's time and tokens are cut into, alike."""


class Stalls(_Part):
    """Rollouts that wait for something that is not the policy.

    ``order`` are seconds that the first rollout of the last prompt in each ``block`` of the training order waits, and
    its group with it, in every replica, times exp(``spread`` x normal); past its end it begins again. Besides, each
    rollout stalls with probability ``sudden_share``, for a draw of ``sudden``."""

    order: tuple[Seconds, ...] = ()
    block: Annotated[int, Field(ge=1)] = 16
    spread: Seconds = 0.0
    sudden_share: Share = 0.0
    sudden: Law = Lognormal(median=0.0)


class First(_Part):
    """What the first step of a process takes beyond a later one: compilation, caches, allocations."""

    log_probabilities: Seconds = 0.0
    update: Seconds = 0.0
    rollout: Seconds = 0.0
    """Before the first rollout can begin."""


class Measured(_Part):
    """What a quantity was in the logs: a sample, sorted, in seconds but where the name says otherwise."""

    batch: int
    """Rollouts of a step."""
    replicas: tuple[int, ...]
    held_out: bool = False
    """Whether nothing of these replicas went into the model."""
    values: Mapping[str, tuple[float, ...]]


class Assumptions(_Part):
    """What the data cannot identify. Each is a guess, and outputs say so."""

    load_requests: Positive = 32.0
    """Requests on an engine at which a token takes twice as long as alone."""
    scaling: Share = 1.0
    """Share of the ideal by which more trainer GPUs make an update faster."""
    bytes_per_s: Positive = 5e9
    """At which a checkpoint is written."""
    weights_bytes: Seconds = 0.0
    """Of a checkpoint of the weights alone."""
    full_bytes: Seconds = 0.0
    """Of one with the optimizer's state."""


class Model(_Part):
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
    """Which settings of ``like`` each quantity's calibration depends on."""
    load: Positive
    """Requests on an engine at calibration."""
    rows: tuple[int, int]
    """Fewest and most rollouts of a step at calibration."""
    passes_after: Mapping[str, int] = {}
    """Rollouts trained on, by rollouts of a step, when the target was met in the logs."""
    start: Law
    first: First = First()
    train: tuple[Rollouts, ...] = Field(min_length=1)
    """By step; the last also for those after it."""
    validation: tuple[Rollouts, ...] = Field(min_length=1)
    """By validation, likewise."""
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
    assumptions: Assumptions = Assumptions()
    assumed: Mapping[str, str] = {}
    """What is assumed and not measured, each with why: by dotted name in this model."""
    conditions: Mapping[str, tuple[str, ...]] = {}
    """What the logs ran under, as ``--set`` arguments to the profile, by rollouts of a step."""
    measured: tuple[Measured, ...] = ()
    """The logs' own figures, of the replicas that were fitted and of those that were held out."""


def read_model(path: Path) -> Model:
    """InputError where it is no model."""
    try:
        return Model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the model {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} is no model of times: {where}: {first['msg']}") from error
