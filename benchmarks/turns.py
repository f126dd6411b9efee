"""What the engine adds to a turn: whole runs with stand-ins in every role, few and many rollouts in flight.

The stand-ins answer at once, so all the time is the engine's, the policy session's, the agent loop's and the record's
(and a little the stand-ins' own). ``inline`` has everything in one process; ``local`` has the rollouts in two worker
processes beside it. A turn is one reply. The runs of a round follow each other; rounds are repeated. Rates are medians
over all steps but each run's first; the CPU of a turn is that of a run, less that of a run of one prompt, which is all
start. On a machine that is busy with other things too, the latter is the figure to look at.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

_IN_FLIGHT = (16, 64, 256, 1152)
_FABRICS = ("inline", "local")
_GENERATIONS = 16
_ROUNDS = 2
_ROLLOUTS = 2304
"""Rollouts of one run at least, and four steps."""

_REGISTRY = """
schema = 1
[profiles.turns]
deterministic = true
policy = {checkpoint = "package:grpo_bench_mock/base", max_context = 1024}
sampling.max_tokens = 96
validation = {split = "heldout", start_at = 1000000}
limits = {concurrency = 4096}
trainer.use = "mock"
generator.use = "mock"
environment.use = "mock"
agent.use = "mock"
fabric.use = "FABRIC"
hardware = {use = "mock", workers = WORKERS}
grpo = {prompts_per_step = PROMPTS, generations_per_prompt = GENERATIONS, max_steps = STEPS}
"""


@dataclass(slots=True)
class _Measured:
    """Of one setting, over all rounds: turns per second of every step, milliseconds of CPU per turn of every run."""

    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


def run() -> Iterator[str]:
    measured = {(fabric, in_flight): _Measured() for fabric in _FABRICS for in_flight in _IN_FLIGHT}
    for _ in range(_ROUNDS):
        started = {fabric: _cpu(_run(fabric, prompts=1, steps=1)) for fabric in _FABRICS}
        for (fabric, in_flight), found in measured.items():
            events = _run(fabric, prompts=in_flight // _GENERATIONS, steps=max(4, _ROLLOUTS // in_flight))
            turns = sum(event["data"]["turns"] for event in events if event["kind"] == "rollout")
            found.rates += _rates(events)
            found.cpu_ms.append(1e3 * (_cpu(events) - started[fabric]) / turns)
    yield f"{'fabric':<8}{'in flight':>10}{'turns/s (min-max)':>22}{'CPU of a turn':>16}"
    for (fabric, in_flight), found in measured.items():
        spread = f"{median(found.rates):.0f} ({min(found.rates):.0f}-{max(found.rates):.0f})"
        ratio = median(found.cpu_ms) / median(measured[fabric, _IN_FLIGHT[0]].cpu_ms)
        yield (f"{fabric:<8}{in_flight:>10}{spread:>22}{median(found.cpu_ms):>13.2f} ms"
               f"{ratio:>8.2f} x with {_IN_FLIGHT[0]}")


def _run(fabric: str, *, prompts: int, steps: int) -> list[dict[str, Any]]:
    """The events of one run."""
    text = _REGISTRY
    for name, value in {"FABRIC": fabric, "WORKERS": 1 if fabric == "inline" else 2, "PROMPTS": prompts,
                        "GENERATIONS": _GENERATIONS, "STEPS": steps}.items():
        text = text.replace(name, str(value))
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder, "registry.toml")
        registry.write_text(text)
        subprocess.run([sys.executable, "-m", "grpo_bench", "run", "--registry", str(registry), "--profile", "turns",
                        "--runs", folder, "--json"], check=True, stdout=subprocess.DEVNULL)
        (journal,) = Path(folder).glob("*/events.jsonl")
        return [json.loads(line) for line in journal.read_text().splitlines()]


def _cpu(events: list[dict[str, Any]]) -> float:
    """Seconds of CPU of a whole run."""
    return events[-1]["data"]["cpu_s"]


def _rates(events: list[dict[str, Any]]) -> list[float]:
    """Turns per second of each step but the first."""
    rates: list[float] = []
    turns, since = 0, None
    for event in events:
        if event["kind"] == "rollout":
            turns += event["data"]["turns"]
        elif event["kind"] == "step":
            if since is not None:
                rates.append(turns / (event["elapsed_s"] - since))
            turns, since = 0, event["elapsed_s"]
    return rates
