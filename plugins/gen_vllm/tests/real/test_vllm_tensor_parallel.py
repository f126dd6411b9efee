"""An engine whose weights are cut over two processes, on one host and over two: it samples what the weights say, also
after they changed, and comes back after a process has ended.

Both hosts are this machine, so what is between them is the loopback; but each has a worker of its own, and vLLM is told
of two nodes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grpo_bench.contract import WorkerLost

from .running import BOUND, SAMPLING, Running, apart, both, broadcast, expected, policy, prompts

pytestmark = pytest.mark.real("vllm")

ASKED = prompts(40, 23)
Said = list[tuple[list[int], list[float]]]


async def says(running: Running, seed: int, version: int) -> Said:
    """What the engine samples and how likely it holds that, which is what the model does."""
    model, said = policy(seed), []
    for ids, values in zip(ASKED, await running.generator.probe(ASKED), strict=True):
        assert np.abs(values[1:] - expected(model, ids)).max() <= BOUND
    for ids, sample in zip(ASKED, await running.ask_all(ASKED), strict=True):
        assert sample.versions == ((SAMPLING.max_tokens, version),)
        assert apart(model, ids, sample) <= BOUND
        said.append((sample.ids.tolist(), sample.log_probabilities.tolist()))
    return said


async def refitted(running: Running) -> Said:
    """Two changes of weights, by chunks and by broadcast; what it says after the first."""
    await running.refit(policy(1), 1)
    said = await says(running, 1, 1)
    await running.generator.pause("drain")
    transfer = running.transfer(policy(2), 2, transport="broadcast")
    await both(running.generator.receive(transfer), asyncio.to_thread(broadcast, transfer, policy(2), 2))
    await running.generator.resume()
    await says(running, 2, 2)
    return said


def test_two_processes_share_one_engine_wherever_they_are(tmp_path: Path,
                                                          environment_python: Callable[[str], str]) -> None:
    async def together(running: Running) -> Said:
        engine, = (await running.generator.health())["engines"]
        assert len(engine["processes"]) == 1  # vLLM's engine process, which has the two under it
        return await refitted(running)

    async def apart_from_each_other(running: Running, wanted: Said) -> None:
        (engine,), (further,) = (await running.generator.health()).values()
        for (ids, values), (wanted_ids, wanted_values) in zip(await refitted(running), wanted, strict=True):
            assert ids == wanted_ids
            assert values == pytest.approx(wanted_values, abs=BOUND)
        under_way = asyncio.ensure_future(running.ask(ASKED[0]))
        follower, = further["processes"]
        assert follower not in engine["processes"]
        os.kill(follower, signal.SIGKILL)
        with pytest.raises(WorkerLost, match=f"host 1 of the engine: vLLM's engine process {follower} was ended by"):
            await under_way
        assert await running.generator.lost() == [0]
        await running.generator.restart(0)
        assert not await running.generator.lost()
        await running.refit(policy(3), 3)
        await says(running, 3, 3)

    python = environment_python("vllm")
    with Running(tmp_path / "one", python, 1, tensor_parallel=2) as running:
        wanted = running.play(together(running))
    with Running(tmp_path / "two", python, 1, tensor_parallel=2, nodes=("a", "b")) as running:
        running.play(apart_from_each_other(running, wanted))
