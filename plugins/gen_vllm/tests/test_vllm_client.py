"""Where requests go: groups together, load even, away from engines that were lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import FinishReason, Purpose, Sample, Sampling, WorkerLost
from grpo_bench_gen_vllm.client import make

SAMPLING = Sampling(purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0,
                    presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(), max_tokens=4, max_context=64,
                    seed=0)
ANSWER = Sample(np.ones(1, np.int32), np.zeros(1, np.float32), FinishReason.STOP, ((1, 0),))


class Engine:
    """A Remote that notes who asked for what."""

    def __init__(self, *, local: bool = False) -> None:
        self.local = local
        self.dead = False
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def call(self, method: str, /, request: str, *given: Any, deadline_s: float | None = None) -> Any:
        if self.dead:
            raise WorkerLost("the worker ended")
        if method == "abort":
            self.aborted.append(request)
            return None
        self.asked.append(given[2].rpartition("/")[0])
        await self.hold.wait()
        return ANSWER


async def ask(client: Any, rollout: str, affinity: str = "g", turn: int = 0) -> Sample:
    return await client.generate(f"{rollout}-{turn}", np.ones(3, np.int32), SAMPLING, stream=f"{rollout}/{turn}",
                                 affinity=affinity, deadline_s=1.0)


def homes(engines: list[Engine]) -> dict[str, int]:
    return {rollout: rank for rank, engine in enumerate(engines) for rollout in engine.asked}


def test_all_turns_of_a_rollout_go_to_one_engine():
    async def play() -> None:
        engines = [Engine() for _ in range(4)]
        client = make(engines)
        for turn in range(3):
            await asyncio.gather(*(ask(client, f"r{number}", f"g{number // 2}", turn) for number in range(8)))
        assert all(count == 3 for engine in engines for count in Counter(engine.asked).values())

    asyncio.run(play())


def test_clients_agree_where_a_group_goes():
    async def play() -> list[dict[str, int]]:
        found = []
        for _ in range(2):
            engines = [Engine() for _ in range(5)]
            client = make(engines)
            for number in range(10):
                await ask(client, f"r{number}", "group")
                await client.release(f"r{number}")
            found.append(homes(engines))
        return found

    first, second = asyncio.run(play())
    assert first == second
    assert len(set(first.values())) == 1


def test_open_rollouts_are_spread_evenly():
    async def play() -> list[int]:
        engines = [Engine() for _ in range(4)]
        client = make(engines)
        for number in range(64):
            await ask(client, f"r{number}", f"g{number // 16}")
        return [len(engine.asked) for engine in engines]

    assert max(asyncio.run(play())) <= 21


def test_a_lost_engine_fails_what_it_had_and_gets_nothing_new():
    async def play() -> None:
        engines = [Engine() for _ in range(2)]
        client = make(engines)
        for number in range(6):
            await ask(client, f"r{number}")
        home = homes(engines)["r0"]
        engines[home].dead = True
        with pytest.raises(WorkerLost):
            await ask(client, "r0", turn=1)
        for number in range(6):
            await ask(client, f"r{number}", turn=2)
        for number in range(6, 12):
            await ask(client, f"r{number}")
        assert len(engines[1 - home].asked) >= 12

    asyncio.run(play())


def test_where_all_are_lost_one_is_tried_all_the_same():
    async def play() -> None:
        engine = Engine()
        client = make([engine])
        engine.dead = True
        with pytest.raises(WorkerLost):
            await ask(client, "r0")
        engine.dead = False
        assert await ask(client, "r1") is ANSWER

    asyncio.run(play())


def test_an_abort_reaches_the_engine_that_was_asked():
    async def play() -> None:
        engines = [Engine() for _ in range(3)]
        client = make(engines)
        for engine in engines:
            engine.hold.clear()
        task = asyncio.create_task(ask(client, "r0"))
        await asyncio.sleep(0)
        await client.abort("r0-0")
        home = homes(engines)["r0"]
        assert [len(engine.aborted) for engine in engines] == [int(rank == home) for rank in range(3)]
        engines[0].dead = True
        await client.abort("unknown")
        assert all(engine.aborted[-1:] == ["unknown"] for engine in engines[1:])
        for engine in engines:
            engine.hold.set()
        engines[0].dead = False
        await task
        await client.release("unknown")

    asyncio.run(play())


def test_engines_of_this_process_come_first():
    async def play() -> None:
        engines = [Engine(), Engine(local=True), Engine()]
        client = make(engines)
        for number in range(5):
            await ask(client, f"r{number}", f"g{number}")
        assert set(homes(engines).values()) == {1}

    asyncio.run(play())
