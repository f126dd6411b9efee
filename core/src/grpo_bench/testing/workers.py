"""The worker that fabrics are tried with."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from ..contract import BatchError, WorkerContext

TARGET = "grpo_bench.testing.workers:make"
BROKEN = "grpo_bench.testing.workers:make_broken"


class Worker:
    """Answers, fails, waits and dies as it is told."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._calls = 0
        self._told = asyncio.Event()

    def who(self) -> dict[str, Any]:
        context = self._context
        return {"group": context.group, "rank": context.rank, "size": context.size, "config": context.config,
                "rendezvous": context.rendezvous, "process": os.getpid()}

    def echo(self, value: Any) -> Any:
        self._calls += 1
        return value

    async def echo_later(self, value: Any) -> Any:
        await asyncio.sleep(0.01)
        return value

    def calls(self) -> int:
        return self._calls

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail(self) -> None:
        raise ValueError("this worker was told to fail")

    def refuse(self) -> None:
        raise BatchError("this batch is refused", hint="make another")

    async def listen(self) -> str:
        await self._told.wait()
        return "told"

    def tell(self) -> None:
        self._told.set()

    async def ask(self, address: Any, method: str, *arguments: Any) -> Any:
        """Call another worker."""
        return await (await self._context.connect(address)).call(method, *arguments)

    async def reaches_directly(self, address: Any) -> bool:
        return (await self._context.connect(address)).local

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        Path(self._context.config["closed"], f"{self._context.group}-{self._context.rank}").touch()


def make(context: WorkerContext) -> Worker:
    return Worker(context)


def make_broken(context: WorkerContext) -> Worker:
    raise RuntimeError("this worker cannot be made")
