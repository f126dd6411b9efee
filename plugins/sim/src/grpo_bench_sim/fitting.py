"""Laws out of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, pstdev

import numpy as np

from .laws import Linear, Quantiles

_FEWEST = 4
"""Samples from which on a slope is looked for."""
_ALIKE = 0.01
"""Spread, relative to the mean, below which samples are taken to be alike."""


def linear(rows: Sequence[float], tokens: Sequence[float], seconds: Sequence[float]) -> Linear:
    """Least squares with coefficients that are not negative; a constant where samples are too few or alike. Its mean
    is that of the samples."""
    columns = [("fixed", np.ones(len(seconds)))]
    if len(seconds) >= _FEWEST:
        columns += [(name, np.array(values, float)) for name, values in (("per_row", rows), ("per_token", tokens))
                    if pstdev(values) > _ALIKE * fmean(values)]
    found = _best(columns, np.array(seconds, float))
    fitted = [sum(found.get(name, 0.0) * float(column[place]) for name, column in columns)
              for place in range(len(seconds))]
    sigma = pstdev([math.log(real / middle) for real, middle in zip(seconds, fitted, strict=True)
                    if real > 0 and middle > 0] or [0.0])
    return Linear(**{name: value * math.exp(-sigma**2 / 2) for name, value in found.items()}, sigma=sigma)


def _best(columns: Sequence[tuple[str, np.ndarray]], seconds: np.ndarray) -> dict[str, float]:
    """The coefficients of least error among those of all choices of columns that are not negative."""
    best, least = {"fixed": float(seconds.mean())}, float(np.square(seconds - seconds.mean()).sum())
    for number in range(1, len(columns) + 1):
        for chosen in combinations(columns, number):
            matrix = np.stack([column for _, column in chosen], axis=1)
            coefficients = np.linalg.lstsq(matrix, seconds, rcond=None)[0]
            error = float(np.square(matrix @ coefficients - seconds).sum())
            if (coefficients >= 0).all() and error < least * (1 - 1e-9):
                best, least = dict(zip((name for name, _ in chosen), map(float, coefficients), strict=True)), error
    return best


def quantiles(values: Sequence[float], most: int) -> Quantiles:
    """The distribution of the values, as at most so many quantiles."""
    ordered = sorted(round(value, 6) for value in values)
    kept = min(most, len(ordered))
    places = [round(place * (len(ordered) - 1) / max(1, kept - 1)) for place in range(kept)]
    return Quantiles(values=tuple(ordered[place] for place in places), count=len(ordered))
