from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_bench.contract import WorkerLost
from grpo_bench_gen_vllm.process import Process


class Engine:
    errored = True

    def shutdown(self, timeout: float) -> None:
        pass


def test_an_engine_known_to_be_in_error_before_its_end_is_seen_says_how_it_ended() -> None:
    asyncio.run(_killed())


async def _killed() -> None:
    child: Any = multiprocessing.get_context("spawn").Process(target=signal.pause)
    child.start()
    process = Process(Engine(), [child])
    try:
        asked = asyncio.ensure_future(process.check())
        await asyncio.sleep(0)
        assert child.pid is not None and not asked.done()
        os.kill(child.pid, signal.SIGKILL)
        for look in (asked, process.check()):
            with pytest.raises(WorkerLost, match=f"engine process {child.pid} was ended by SIGKILL"):
                await look
    finally:
        await process.close()
        child.join()


def test_an_engine_in_error_whose_process_goes_on_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_bench_gen_vllm.process._LAST_WORDS_S", 0.0)
    asyncio.run(_going_on())


async def _going_on() -> None:
    reader, writer = os.pipe()
    try:
        process = Process(Engine(), [SimpleNamespace(pid=1, sentinel=reader, exitcode=None)])
        with pytest.raises(WorkerLost, match="is in error"):
            await process.check()
        await process.close()
    finally:
        os.close(reader)
        os.close(writer)
