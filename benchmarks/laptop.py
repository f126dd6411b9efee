"""The laptop profile, seeds 0 to 9, one after another: how many meet the target, how fast, and where the time goes.

Takes long, so it runs only where it is named: ``make bench ARGS=laptop``. A line per seed, whatever came of it; then
the medians and the share of each phase.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from statistics import median
from typing import Any

from ._laptop import asked

ON_REQUEST = True
SEEDS = range(10)


def run() -> Iterator[str]:
    summaries = []
    with tempfile.TemporaryDirectory() as runs:
        yield "seed  status         steps  pass@4  to target  CPU"
        for seed in SEEDS:
            summary = asked("run", "--seed", str(seed), "--runs", runs)
            summaries.append(summary)
            yield _line(seed, summary)
    met = [summary for summary in summaries if summary["status"] == "target_met"]
    yield f"{len(met)} of {len(SEEDS)} met the target"
    yield f"medians: {median(summary['cpu_s'] for summary in summaries):.0f} s of CPU, " \
          f"{median(summary['wall_s'] for summary in summaries):.0f} s in all"
    total = sum(summary["wall_s"] for summary in summaries)
    phases = sorted({phase for summary in summaries for phase in summary["ledger"]},
                    key=lambda phase: -sum(summary["ledger"].get(phase, 0.0) for summary in summaries))
    for phase in phases:
        seconds = [summary["ledger"].get(phase, 0.0) for summary in summaries]
        yield f"{phase:<18}{median(seconds):8.1f} s {sum(seconds) / total:6.1%}"


def _line(seed: int, summary: dict[str, Any]) -> str:
    reached = summary["time_to_target_s"]
    return (f"{seed:>4}  {summary['status']:<13}  {summary['steps']:>5}  {summary['value']:.3f}   "
            f"{'-' if reached is None else f'{reached:.0f} s':>8}  {summary['cpu_s']:.0f} s")
