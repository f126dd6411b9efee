"""Laptop runs, each beside what simulations say that are calibrated on the others, phase by phase.

Takes long, so it runs only where it is named: ``make bench ARGS=prediction``. Each of the seeds runs twice. A
simulation is given the seed of the run that it foretells and the step at which that one ended, which no simulation
foretells. Runs of one seed do the same work: that one of them is off from the other is the machine's doing, and no
simulation is nearer. Another seed has another policy as well, whose replies are longer or shorter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from ._laptop import asked

ON_REQUEST = True
SEEDS = range(3)
_TIMES = 2


def run() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as place:
        runs = [_run(seed, Path(place)) for _ in range(_TIMES) for seed in SEEDS]
        pairs = [(first, second, _foretold(first, second, Path(place) / f"simulation-{number}"))
                 for number, (first, second) in enumerate(permutations(runs, 2))]
    taken = [run["ledger"] for run in runs]
    same = [pair for pair in pairs if pair[0]["seed"] == pair[1]["seed"]]
    other = [pair for pair in pairs if pair[0]["seed"] != pair[1]["seed"]]
    columns = {"the other run itself": [(first["ledger"], second["ledger"]) for first, second, _ in same],
               "same seed, simulated": [(said, second["ledger"]) for _, second, said in same],
               "another seed, simulated": [(said, second["ledger"]) for _, second, said in other]}
    yield f"{'off by':<19}{'taken':>8}" + "".join(f"{name:>26}" for name in columns)
    yield _line("the whole run", [sum(ledger.values()) for ledger in taken],
                [[sum(said.values()) / sum(real.values()) for said, real in column] for column in columns.values()])
    for phase in sorted(pairs[0][-1], key=lambda phase: -median(ledger[phase] for ledger in taken)):
        yield _line(phase, [ledger[phase] for ledger in taken],
                    [[said[phase] / real[phase] for said, real in column] for column in columns.values()])


def _line(what: str, seconds: Sequence[float], columns: Sequence[Sequence[float]]) -> str:
    return f"{what:<19}{median(seconds):>6.1f} s" + "".join(f"{_off(ratios):>26}" for ratios in columns)


def _off(ratios: Sequence[float]) -> str:
    least, middle, most = (ratio - 1 for ratio in (min(ratios), median(ratios), max(ratios)))
    return f"{middle:+.0%} ({least:+.0%} to {most:+.0%})"


def _run(seed: int, place: Path) -> dict[str, Any]:
    summary = asked("run", "--seed", str(seed), "--runs", str(place / "runs"))
    return {**summary, "seed": seed, "folder": place / "runs" / summary["run"]}


def _foretold(model: dict[str, Any], real: dict[str, Any], out: Path) -> dict[str, float]:
    found = asked("simulate", "--seed", str(real["seed"]), "--replicas", "1", "--calibrate", str(model["folder"]),
                  "--passes-at", str(real["steps"]), "--out", str(out))
    return {phase["phase"]: phase["seconds"] for phase in found["phases"]}
