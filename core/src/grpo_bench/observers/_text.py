"""How numbers read to people: durations, rates, metrics, sparklines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """``32 µs``, ``8.1 ms``, ``12.3 s``, ``4 min 12 s``, ``2 h 05 min``; a dash where there is none."""
    if seconds is None:
        return "–"
    if 0 < seconds < 0.0000995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.0995:
        return f"{seconds * 1000:.{0 if seconds >= 0.00995 or not seconds else 1}f} ms"
    if seconds < 9.95:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def stopwatch(seconds: float) -> str:
    """``4:12`` or ``1:02:07``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def metric_label(metric: str | None, k: int | None) -> str:
    """The field's name of a metric: ``pass@4`` for pass_k with k = 4."""
    names = {"pass_k": f"pass@{k}", "pass_hat_k": f"pass^{k}", "pass_1": "pass@1"}
    return names.get(metric or "", metric or "")


def name(identifier: str) -> str:
    """An identifier as words: ``log_probabilities`` reads ``log-probabilities``, ``max_turns`` ``max turns``."""
    return "log-probabilities" if identifier == "log_probabilities" else identifier.replace("_", " ")


def counted(count: int, noun: str) -> str:
    """``1 step``, ``1,024 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def simulated(modelled: str) -> str:
    """What a reader has to know of a simulation first."""
    return (f"A simulation: nothing was computed, so there are no rewards, losses or accuracy, and whether the target "
            f"is met is assumed. Its times are from {modelled}.")


def assumed(words: str) -> str:
    """How a simulation ended, in words: ``target assumed met`` for ``target met``."""
    first, _, rest = words.partition(" ")
    return f"{first} assumed {rest}" if first.lower() == "target" else words


def taken_back(seconds: float, steps: int, rollouts: int) -> str:
    """What a resumption made undone of an attempt; a dash for nothing."""
    if not (seconds or rollouts):
        return "–"
    undone = [counted(steps, "step")] if steps else []
    return ", ".join([duration(seconds), *undone, counted(rollouts, "rollout")])


def number(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits or decimals, thousands grouped; a dash for none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if abs(value) >= 10 ** -digits else f"{value:.{digits}g}"


def sparkline(values: Sequence[float], width: int, high: float) -> str:
    """The last ``width`` values as bars between 0 and ``high``."""
    heights = (min(1.0, max(0.0, value / high)) if high > 0 else 0.0 for value in values[-width:])
    return "".join(_BARS[round(height * (len(_BARS) - 1))] for height in heights)


def shares(parts: Mapping[str, float], at_least: float = 0.01) -> list[tuple[str, float]]:
    """(name, share of the sum), largest first, those below ``at_least`` left out."""
    total = sum(parts.values())
    found = [(key, value / total) for key, value in parts.items() if total and value / total >= at_least]
    return sorted(found, key=lambda item: -item[1])
