# pyright: reportMissingImports=false
"""A further host of an engine: vLLM's worker processes there, which take part in what the engine's first host does.

The worker waits to be told by the first host where to join it. From then on it only watches its processes: requests,
weights and health are the first host's, whose calls vLLM carries to every process of the engine. A follower's part
cannot be joined a second time; an engine is started again with all of its workers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import PluginError, WorkerContext

from .arguments import over_hosts
from .endings import Watch, not_started
from .process import prepare


class Follower:
    """What the engine's first host and the controller call."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._executor: Any = None
        self._watch: Watch | None = None

    async def join(self, hosts: int, node: int, address: str) -> None:
        """Start this host's processes, the ``node``-th of ``hosts``; done when all of the engine's have met at
        ``address``."""
        arguments = {**self._arguments, **over_hosts(hosts, node, address)}
        self._executor = await asyncio.to_thread(_executor, arguments)
        self._watch = Watch([worker.proc for worker in self._executor.workers])

    async def wait(self) -> None:
        """Until a process has ended, which WorkerLost tells of."""
        raise (await asyncio.shield(self._joined.ended)).again()

    async def health(self) -> Mapping[str, Any]:
        if self._joined.ended.done():
            raise self._joined.ended.result().again()
        return {"processes": self._joined.pids}

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.stop()
            for worker in self._executor.workers:  # they wait for a first host that is gone, and hold nothing to keep
                worker.proc.kill()
            await asyncio.to_thread(self._executor.shutdown)

    @property
    def _joined(self) -> Watch:
        if self._watch is None:
            raise PluginError("this host has not joined its engine")
        return self._watch


def _executor(arguments: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # this process has threads
    config = AsyncEngineArgs(**arguments).create_engine_config(headless=True)
    try:
        return MultiprocExecutor(config, monitor_workers=False)
    except Exception as error:  # vLLM raises no type of its own here
        raise not_started(error) from error


async def make(context: WorkerContext) -> Follower:
    """The group's target."""
    return Follower(prepare(context))
