"""What a simulation costs: 18 steps of the MLPerf benchmark's size, beside an event loop that only waits as often.

The replicas of ``gb300-256`` alternate with the yardstick: a virtual clock on which as many rollouts, as many at once,
wait for each of their hops and do nothing else. All of it is CPU time of one process. Then one more replica is sampled
every few milliseconds of CPU, and each sample counts for the innermost of our modules under way.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, TypeVar

from grpo_bench.engine import run_virtual
from grpo_bench.registry import resolve, survey
from grpo_bench_sim.choosing import model_for
from grpo_bench_sim.model import Model
from grpo_bench_sim.simulation import Simulation, simulate
from grpo_bench_sim.standing import Scenario

from . import Result

_T = TypeVar("_T")
_STEPS = 18
_HOPS = 5
"""Queue, start of the sandbox, generation, the environment's work, grading."""
_ROUNDS = 3
_SAMPLE_S = 0.002
_PARTS = (("grpo_bench.engine.clock", "the event loop"), ("grpo_bench.observers", "the record"),
          ("grpo_bench_sim", "the stand-ins"), ("grpo_bench", "the engine"))
"""What a module belongs to, by the beginning of its name."""


def run() -> Iterator[Result | str]:
    plan = _plan()
    model = model_for(plan)
    rollouts = plan.profile.grpo.prompts_per_step * plan.profile.grpo.generations_per_prompt
    what = f"{_STEPS} steps of {rollouts} rollouts"
    taken, waited, simulated = [], [], []
    for seed in range(_ROUNDS):
        cpu_s, found = _cpu(partial(_simulated, plan, model, seed))
        taken.append(cpu_s)
        simulated.append(found.runs[0].wall / cpu_s)
        waited.append(_cpu(partial(run_virtual, lambda clock: _waits(rollouts)))[0])
    yield Result(what, median(taken), "waits alone", median(waited))
    yield f"{'simulated seconds per second of CPU':<36}{median(simulated):>10,.0f}"
    samples = _sampled(partial(_simulated, plan, model, 0))
    for part, count in samples.most_common():
        yield f"{f'of which {part}':<36}{count / samples.total():>10.0%}"


def _plan() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return survey(resolve("gb300-256", overrides=(f"grpo.max_steps={_STEPS}",), cwd=Path(folder)), 0)


def _simulated(plan: Any, model: Model, seed: int) -> Simulation:
    return simulate(plan, model, Scenario(), [seed], None)


async def _waits(rollouts: int) -> None:
    for _ in range(_STEPS):
        await asyncio.gather(*(_rollout(number) for number in range(rollouts)))


async def _rollout(number: int) -> None:
    for hop in range(_HOPS):
        await asyncio.sleep(1 + number + hop)


def _cpu(work: Callable[[], _T]) -> tuple[float, _T]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _sampled(work: Callable[[], object]) -> Counter[str]:
    """How many samples of the CPU time of ``work`` each part has."""
    samples: Counter[str] = Counter()
    before = signal.signal(signal.SIGPROF, lambda _, frame: samples.update([_part(frame)]))
    signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return samples


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for beginning, part in _PARTS:
            if f"{module}.".startswith(f"{beginning}."):
                return part
        frame = frame.f_back
    return "the rest"
