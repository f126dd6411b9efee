"""What a rollout of the OpenHands agent costs: forked into its sandbox, beside one that imports OpenHands itself.

The policy is a script behind the real gateway, so all that is timed is the agent and its sandbox. CPU seconds are those
of the agent's process and of the commands that it runs. A turn is what one more command adds. The import is paid once
per worker where programs can be forked into sandboxes, and by each rollout elsewhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from grpo_bench_agent_openhands import OpenHandsConfig
from grpo_bench_agent_openhands.agent import OpenHandsAgent

from . import Result

ON_REQUEST = True
_TURNS, _SIDE_BY_SIDE, _ROUNDS = 12, 8, 3


def run() -> Iterator[Result]:
    few, many, beside, alone, imported = asyncio.run(_measure())
    turn = (many["cpu"] - few["cpu"]) / (_TURNS - 1)
    yield Result("CPU of a rollout of one turn, forked", few["cpu"], "the same, importing", imported["cpu"])
    yield Result(f"CPU of a rollout of {_TURNS} turns, forked", many["cpu"], "the same with one turn", few["cpu"])
    yield Result("CPU of one more turn", turn, "a rollout of one turn, importing", imported["cpu"])
    yield Result("wall time of a rollout, forked", few["wall"], "the same, importing", imported["wall"])
    yield Result(f"{_SIDE_BY_SIDE} rollouts side by side", beside, "one alone", alone)
    print(f"  memory of its own: {many['own_mb']:.0f} MiB forked, {imported['own_mb']:.0f} MiB importing; the import "
          f"takes {imported['import']:.1f} s")


async def _measure() -> tuple[dict[str, float], dict[str, float], float, float, dict[str, float]]:
    """Medians of a rollout with one turn, with many, wall time side by side and alone, one that imports."""
    tools = _playing()
    python = _interpreter()
    forking = OpenHandsAgent(OpenHandsConfig(), tools.context_of(python))
    importing = OpenHandsAgent(OpenHandsConfig(fork="never"), tools.context_of(python))
    commands = [tools.bash(f"echo {number}") for number in range(_TURNS - 1)]
    done = tools.call(*tools.FINISH)
    await forking.start()
    try:
        few = await _median(tools, forking, [done], _ROUNDS)
        many = await _median(tools, forking, [*commands, done], 1)
        started = time.perf_counter()
        rollouts = (tools.converse(forking, tools.sandboxed, [*commands, done]) for _ in range(_SIDE_BY_SIDE))
        await asyncio.gather(*rollouts)
        beside = time.perf_counter() - started
        imported = await _median(tools, importing, [done], 1)
    finally:
        await forking.close()
    return few, many, beside, many["wall"], imported


async def _median(tools: Any, agent: Any, replies: Sequence[str], rounds: int) -> dict[str, float]:
    walls = []
    for _ in range(rounds):
        started = time.perf_counter()
        played = await tools.converse(agent, tools.sandboxed, replies)
        walls.append(time.perf_counter() - started)
        if played.replies != len(replies):
            raise RuntimeError(f"the agent ended after {played.replies} of {len(replies)} turns: {played.end}")
    costs = list(agent.costs)[-rounds:]
    return {"wall": median(walls), "cpu": median(cost["cpu_s"] + cost["tools_cpu_s"] for cost in costs),
            "own_mb": median(cost["own_mb"] for cost in costs), "import": median(cost["import_s"] for cost in costs)}


def _playing() -> Any:
    """What the tests of the agent play rollouts with."""
    path = Path(__file__).parents[1] / "plugins/agent_openhands/tests/real/playing.py"
    spec = importlib.util.spec_from_file_location("playing", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["playing"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _interpreter() -> str:
    from grpo_bench.registry.envs import locate, named

    return locate(named("openhands")).interpreter
