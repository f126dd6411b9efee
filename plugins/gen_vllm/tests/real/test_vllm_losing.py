"""Engines that end in the middle: what runs there fails with the cause, what is elsewhere goes on, a new one serves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_bench.contract import WorkerLost

from .running import BOUND, SAMPLING, Running, apart, policy, prompts

pytestmark = pytest.mark.real("vllm")

LONG = replace(SAMPLING, max_tokens=400)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, environment_python) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("pair"), environment_python("vllm"), workers=2) as running:
        yield running


def test_both_engines_get_the_weights_and_serve(pair: Running):
    model, asked = policy(1), prompts(30, 40, 50, 60, 35, 45)

    async def play() -> None:
        await pair.refit(model, 1)
        await pair.generator.probe(prompts(50))
        samples = await asyncio.gather(*(pair.ask(ids, f"both{index}/0", affinity=f"g{index}")
                                         for index, ids in enumerate(asked)))
        for ids, sample in zip(asked, samples, strict=True):
            assert {version for _, version in sample.versions} == {1}
            assert apart(model, ids, sample) <= BOUND
        engines = (await pair.generator.health())["engines"]
        assert all(engine["sampled_tokens"] for engine in engines)
        assert not await pair.generator.lost()

    pair.play(play())


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_an_engine_that_is_killed_is_named_and_replaced(pair: Running, victim: str):
    model, ids = policy(2), prompts(40)[0]

    async def play() -> None:
        await pair.refit(model, 2)
        running = [asyncio.ensure_future(pair.ask(ids, f"{victim}{index}/0", affinity=f"k{index}", sampling=LONG))
                   for index in range(8)]
        await asyncio.sleep(0.3)
        process, = (await pair.generator.health())["engines"][0]["processes"]
        worker = _parent(process)
        os.kill(process if victim == "engine" else worker, signal.SIGKILL)
        answers = await asyncio.gather(*running, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, WorkerLost)]
        assert failed and all(len(answer.ids) for answer in answers if not isinstance(answer, BaseException))
        assert sum(isinstance(answer, BaseException) for answer in answers) == len(failed) < len(answers)
        for error in failed:
            assert "SIGKILL" in error.message
            assert "last output" in error.message and error.remote_traceback
        assert await pair.generator.lost() == [0]
        for index in range(4):
            assert len((await pair.ask(ids, f"{victim}-after{index}/0", affinity=f"a{index}")).ids)
        await pair.generator.restart(0)
        assert not _exists(process)
        assert not await pair.generator.lost()
        await pair.refit(policy(3), 3)
        await pair.generator.probe(prompts(50))
        assert [engine["version"] for engine in (await pair.generator.health())["engines"]] == [3, 3]

    pair.play(play())


def _parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat[stat.rindex(")") + 2:].split()[1])


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
