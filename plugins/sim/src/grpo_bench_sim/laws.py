"""Distributions that a model draws durations and amounts from. A draw takes a random stream and nothing else."""

from __future__ import annotations

import math
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Of seconds or tokens. The greatest is thirty years."""
Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
Sigma = Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)]
"""Standard deviation of a logarithm."""
Count = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Of a model of times: frozen, and nothing in it that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Lognormal(Part):
    """A median times exp(``sigma`` x normal)."""

    kind: Literal["lognormal"] = "lognormal"
    median: Amount
    sigma: Sigma = 0.0
    """0: always the median."""
    most: Positive | None = None
    """No draw is above this."""

    def draw(self, random: Random) -> float:
        drawn = self.median * math.exp(self.sigma * random.gauss(0.0, 1.0)) if self.sigma else self.median
        return drawn if self.most is None else min(drawn, self.most)

    @property
    def middle(self) -> float:
        return self.median


class Recorded(Part):
    """Any of the values that were seen, each as likely."""

    kind: Literal["recorded"] = "recorded"
    values: tuple[Amount, ...] = Field(min_length=1)

    def draw(self, random: Random) -> float:
        return self.values[random.randrange(len(self.values))]

    @property
    def middle(self) -> float:
        return sorted(self.values)[len(self.values) // 2]


class Quantiles(Part):
    """A distribution through quantiles of ``count`` values that were seen, the least and the greatest among them. As
    many draws as that have, in the mean, about the same maximum: one may be beyond the greatest."""

    kind: Literal["quantiles"] = "quantiles"
    values: tuple[Amount, ...] = Field(min_length=1)
    """In order, evenly spaced in rank."""
    count: Count

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


class Linear(Part):
    """``fixed`` + ``per_row`` x rows + ``per_token`` x sampled tokens, times a factor exp(sigma x normal)."""

    fixed: Amount = 0.0
    per_row: Amount = 0.0
    per_token: Amount = 0.0
    sigma: Sigma = 0.0

    def middle(self, rows: int, tokens: float) -> float:
        """Without the factor."""
        return self.fixed + self.per_row * rows + self.per_token * tokens

    def draw(self, random: Random, rows: int, tokens: float) -> float:
        middle = self.middle(rows, tokens)
        return middle * math.exp(self.sigma * random.gauss(0.0, 1.0)) if self.sigma else middle
