"""The report's charts, each drawn for a given frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ._svg import Frame, axes, drawing, line, path, scale, tag, text, ticks
from ._text import duration, name
from ._view import RunView

_MOST_BARS = 120
_MOST_BINS = 16
_WIDEST_BAR = 90.0
_LABEL_GAP = 15


def learning_curve(view: RunView, frame: Frame, class_: str) -> str:
    """The metric over the steps with a band of one standard error, its target, and the mean training reward."""
    values = [(v.step, v.data["metrics"][view.metric], v.data["standard_error"]) for v in view.validations]
    rewards = [(row.step, reward) for row in view.steps if (reward := row.step_data["reward_mean"]) is not None]
    heights = [value for _, value, _ in values] + [reward for _, reward in rewards]
    steps = [step for step, *_ in values] + [step for step, _ in rewards]
    low, high = min([0.0, *heights]), max([1.0 if values or max(heights, default=1.0) > 0 else 0.0, *heights])
    first, last = min(steps, default=0), max(steps, default=1)
    last = max(last, first + 1)
    x, y = scale((first, last), frame.x), scale((low, high), frame.y)
    x_ticks = [(x(t), f"{t:g}") for t in ticks(first, last, frame.width // 90) if t == int(t)]
    parts = [axes(frame, x_ticks, [(y(t), f"{t:g}") for t in ticks(low, high, 5)], "step", "")]
    upper = [(x(s), y(min(high, v + e))) for s, v, e in values]
    lower = [(x(s), y(max(low, v - e))) for s, v, e in values]
    parts.append(path(upper + lower[::-1], "band", close=True) if len(values) > 1 else "")
    target = view.started.get("target")
    if target is not None:
        parts += [line(frame.x[0], y(target), frame.x[1], y(target), "target"),
                  text(frame.x[0] + 4, y(target) - 6, f"target {target:g}", "label")]
    parts.append(path([(x(s), y(r)) for s, r in rewards], "reward") if rewards else "")
    parts.append(path([(x(s), y(v)) for s, v, _ in values], "metric") if values else "")
    parts += [tag("circle", cx=x(s), cy=y(r), r=2.6, class_="reward-dot") for s, r in rewards if len(rewards) == 1]
    parts += [tag("circle", tag("title", f"step {s}: {v:.3f} ± {e:.3f}"), cx=x(s), cy=y(v), r=3.2, class_="metric-dot")
              for s, v, e in values]
    ends = [(y(values[-1][1]), view.metric_name, "metric-label")] if values else []
    ends += [(y(rewards[-1][1]), "mean reward", "reward-label")] if rewards else []
    parts += [text(frame.x[1] + 8, at + 4, label, style) for at, label, style in _apart(ends)]
    title = f"{view.metric_name} and mean training reward by step"
    return drawing(frame, title, "".join(parts), class_)


def step_times(view: RunView, frame: Frame, class_: str) -> str:
    """Seconds of each step, stacked by phase; of many steps, the mean of equal runs of them."""
    bars = _bars(view.tally.ledger.steps())
    top = max((sum(spent.values()) for _, _, spent in bars), default=1.0)
    y = scale((0.0, top * 1.04), frame.y)
    width = (frame.x[1] - frame.x[0]) / max(1, len(bars))
    parts = []
    bar = min(width * 0.8, _WIDEST_BAR)
    for index, (first, last, spent) in enumerate(bars):
        middle, base = frame.x[0] + (index + 0.5) * width, 0.0
        rects = []
        for phase, seconds in spent.items():
            rects.append(tag("rect", x=middle - bar / 2, y=y(base + seconds), width=bar,
                             height=y(base) - y(base + seconds), class_=f"p-{phase}"))
            base += seconds
        steps = f"step {first}" if first == last else f"steps {first} to {last}, mean"
        detail = ", ".join(f"{name(phase)} {duration(seconds)}" for phase, seconds in spent.items() if seconds)
        parts.append(tag("g", tag("title", f"{steps}: {duration(base)} ({detail})") + "".join(rects)))
    every = max(1, -(-len(bars) * 46 // int(frame.x[1] - frame.x[0])))
    x_ticks = [(frame.x[0] + (i + 0.5) * width, str(bars[i][0])) for i in range(0, len(bars), every)]
    grid = axes(frame, x_ticks, [(y(t), f"{t:g}") for t in ticks(0.0, top, 5)], "step", "seconds")
    return drawing(frame, "Seconds per step by phase", grid + "".join(parts), class_)


def histogram(counts: Counter[int], x_title: str, frame: Frame, class_: str) -> str:
    """How many rollouts have which size, as shares of all of them."""
    bins, total = _bins(counts), max(1, counts.total())
    most = max((count for *_, count in bins), default=1) / total
    y = scale((0.0, most * 1.05), frame.y)
    width = (frame.x[1] - frame.x[0]) / max(1, len(bins))
    bar = min(width * 0.88, _WIDEST_BAR)
    rects, x_ticks = [], []
    every = max(1, -(-len(bins) * 48 // int(frame.x[1] - frame.x[0])))
    for index, (low, high, count) in enumerate(bins):
        middle = frame.x[0] + (index + 0.5) * width
        label = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        top = y(count / total)
        rects.append(tag("rect", tag("title", f"{label}: {count:,} rollouts, {count / total:.1%}"), class_="bin",
                         x=middle - bar / 2, y=top, width=bar, height=y(0.0) - top))
        if index % every == 0:
            x_ticks.append((middle, f"{low:,}"))
    grid = axes(frame, x_ticks, [(y(t), f"{t * 100:g}%") for t in ticks(0.0, most, 4)], x_title, "")
    return drawing(frame, f"Rollouts by {x_title}", grid + "".join(rects), class_)


def share_bar(parts: Mapping[str, float], class_: str) -> str:
    """One horizontal bar, divided by phase."""
    total = sum(parts.values()) or 1.0
    cells, left = [], 0.0
    for phase, seconds in parts.items():
        width = seconds / total * 1000
        cells.append(tag("rect", tag("title", f"{name(phase)} {seconds / total:.1%}"), x=left, y=0,
                         width=width, height=18, class_=f"p-{phase}"))
        left += width
    return (f'<svg class="{class_}" viewBox="0 0 1000 18" preserveAspectRatio="none" role="img" '
            f'aria-label="Shares of the wall clock by phase">{"".join(cells)}</svg>')


def _apart(labels: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Labels moved down until none covers the one above."""
    placed = sorted(labels)
    for before, after in pairwise(range(len(placed))):
        if placed[after][0] - placed[before][0] < _LABEL_GAP:
            placed[after] = (placed[before][0] + _LABEL_GAP, *placed[after][1:])
    return placed


def _bars(steps: Mapping[int, Mapping[str, float]]) -> list[tuple[int, int, dict[str, float]]]:
    """(first step, last step, phase -> mean seconds), at most so many."""
    numbers = sorted(step for step in steps if step > 0)
    size = -(-len(numbers) // _MOST_BARS) or 1
    found = []
    for start in range(0, len(numbers), size):
        some = numbers[start:start + size]
        phases = list(dict.fromkeys(phase for step in some for phase in steps[step]))
        found.append((some[0], some[-1], {p: sum(steps[s].get(p, 0.0) for s in some) / len(some) for p in phases}))
    return found


def _bins(counts: Counter[int]) -> Sequence[tuple[int, int, int]]:
    """(lowest, highest, count) of equal ranges that cover every size and begin at round numbers."""
    if not counts:
        return []
    low, high = min(counts), max(counts)
    width = next(power * digit for power in (10 ** n for n in range(20)) for digit in (1, 2, 5)
                 if high // (power * digit) - low // (power * digit) < _MOST_BINS)
    found = Counter[int]()
    for size, count in counts.items():
        found[size // width] += count
    return [(index * width, index * width + width - 1, found[index])
            for index in range(low // width, high // width + 1)]
