# pyright: reportMissingImports=false
"""vLLM's AsyncLLM as the worker holds it: started, called, watched, ended.

The engine proper runs in a child process (with tensor parallelism in several) that AsyncLLM starts; this process keeps
the requests. A call that waits for the child would wait for ever once it is dead, so every call is raced with its end:
:attr:`Process.ended` says how it ended and what it last put out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from grpo_bench.contract import PluginError, WorkerLost

T = TypeVar("T")

_SOCKET_ROOM = 66
"""Longest folder that leaves room for the names of vLLM's sockets."""
_TAIL_BYTES, _TAIL_LINES = 8192, 20
_REAP_S, _REAPS = 0.02, 100
_LAST_WORDS_S = 5.0


def prepare(folder: str, *, compiled: bool) -> None:
    """The environment that vLLM's processes start with; call before vLLM is imported. ``folder`` is this run's own.
    Not ``compiled``: neither the model nor the small functions around it, whose compilation the first request of every
    engine would wait for."""
    os.environ.update({
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CONFIG_ROOT": folder,
        "VLLM_PLUGINS": "",  # of other packages; none may change what is computed
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads are the placement's
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPU too, one process less where there is no tensor parallelism
    })
    if not compiled:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would overrule the cache size of the settings
    if len(folder) <= _SOCKET_ROOM:
        os.environ["TMPDIR"] = os.environ["VLLM_RPC_BASE_PATH"] = folder
        tempfile.tempdir = None


class Process:
    """A running engine. ``ended`` is set to a WorkerLost when its process has ended without being asked to."""

    def __init__(self, engine: Any, processes: list[Any]) -> None:
        self.engine = engine
        self.pids = [process.pid for process in processes]
        self.ended: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        self._watching = [asyncio.create_task(self._watch(process)) for process in processes]

    @classmethod
    def start(cls, arguments: Mapping[str, Any]) -> Process:
        """Start an engine; PluginError with its last output where that fails."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        config = AsyncEngineArgs(**arguments).create_engine_config()
        if config.parallel_config.distributed_executor_backend == "uni":
            # The engine's process is a copy of this one, which has imported everything. vLLM asks for a fresh one on
            # CPU, to bind threads there, which it does not do here.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        try:
            engine = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        except RuntimeError as error:
            failed = PluginError(f"vLLM's engine does not start: {error}", hint="its output is in the worker's log")
            failed.remote_traceback = "\n".join(_tail())
            raise failed from error
        return cls(engine, list(engine.engine_core.resources.engine_manager.processes))

    async def call(self, work: Awaitable[T]) -> T:
        """The result of ``work``; WorkerLost where the engine's process ends first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not self.ended.done() and not self.engine.errored:
                return task.result()
        finally:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise await self._lost()

    async def rpc(self, method: str, *args: Any) -> None:
        """Call a method of the extension in every process of the engine."""
        await self.call(self.engine.collective_rpc(method, args=args))

    async def check(self) -> None:
        """WorkerLost where it has ended."""
        if self.ended.done() or self.engine.errored:
            raise await self._lost()

    async def _lost(self) -> WorkerLost:
        """Why it has ended. vLLM may know of an error before the process ends by it, or before that is seen here."""
        await asyncio.wait({self.ended}, timeout=_LAST_WORDS_S)
        return self.ended.result().again() if self.ended.done() else WorkerLost(
            "vLLM's engine is in error", hint="its output is in the worker's log")

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self.engine.shutdown(timeout=0)

    async def _watch(self, process: Any) -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(process.sentinel)
        for _ in range(_REAPS):  # vLLM's own thread may be the one that reaps it
            if process.exitcode is not None:
                break
            await asyncio.sleep(_REAP_S)
        tail = _tail()
        last = f"; its last output: {tail[-1]}" if tail else ""
        error = WorkerLost(f"vLLM's engine process {process.pid} {_ending(process.exitcode)}{last}",
                           hint="its output is in the worker's log")
        error.remote_traceback = "\n".join(tail)
        if not self.ended.done():
            self.ended.set_result(error)


def _ending(code: int | None) -> str:
    if code is None:
        return "has ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tail() -> list[str]:
    """The last lines of the file that this process and its children write their output to, if it is one."""
    path = Path("/proc/self/fd/2")
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-_TAIL_LINES:]
