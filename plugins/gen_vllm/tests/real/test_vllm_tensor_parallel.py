"""One engine whose weights are cut over two processes: it samples what the weights say, also after they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from .running import BOUND, SAMPLING, Running, apart, both, broadcast, expected, policy, prompts

pytestmark = pytest.mark.real("vllm")


def test_two_processes_share_one_engine(tmp_path: Path, environment_python: Callable[[str], str]) -> None:
    asked = prompts(40, 23)

    async def agrees(running: Running, seed: int, version: int) -> None:
        model = policy(seed)
        for ids, values in zip(asked, await running.generator.probe(asked), strict=True):
            assert np.abs(values[1:] - expected(model, ids)).max() <= BOUND
        for ids, sample in zip(asked, await running.ask_all(asked), strict=True):
            assert sample.versions == ((SAMPLING.max_tokens, version),)
            assert apart(model, ids, sample) <= BOUND

    async def play(running: Running) -> None:
        engine, = (await running.generator.health())["engines"]
        assert len(engine["processes"]) == 1  # vLLM's engine process, which has the two under it
        await running.refit(policy(1), 1)
        await agrees(running, 1, 1)
        await running.generator.pause("drain")
        transfer = running.transfer(policy(2), 2, transport="broadcast")
        await both(running.generator.receive(transfer), asyncio.to_thread(broadcast, transfer, policy(2), 2))
        await running.generator.resume()
        await agrees(running, 2, 2)

    with Running(tmp_path, environment_python("vllm"), workers=1, tensor_parallel=2) as running:
        running.play(play(running))
