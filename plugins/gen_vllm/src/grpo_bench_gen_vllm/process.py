# pyright: reportMissingImports=false
"""vLLM's AsyncLLM as the worker holds it: started, called, watched, ended.

The engine proper runs in a child process (with tensor parallelism in several) that AsyncLLM starts; this process keeps
the requests. A call that waits for the child would wait for ever once it is dead, so every call is raced with its end:
the watch says how it ended and what it last put out. Processes on further hosts are the followers' (:mod:`.follower`);
the engine ends with any of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from grpo_bench.contract import GrpoBenchError, Remote, WorkerContext, WorkerLost
from grpo_bench.network import free_port, use_interface_of

from .arguments import engine_arguments, over_hosts
from .config import VllmGeneratorConfig
from .endings import Watch, not_started

T = TypeVar("T")

BACKEND = "grpo_bench"
"""The name of our weight-transfer backend in vLLM."""
_SOCKET_ROOM = 66
"""Longest folder that leaves room for the names of vLLM's sockets."""
_LAST_WORDS_S = 5.0


def prepare(context: WorkerContext) -> dict[str, Any]:
    """Set the environment that vLLM's processes start with, before vLLM is imported; returns the engine's
    arguments."""
    settings = VllmGeneratorConfig(**context.config["settings"])
    _set_environment(context.rendezvous, context.host, compiled=settings.cuda_graphs != "off")
    from vllm.platforms import current_platform

    return engine_arguments(settings, context.config["policy"], device=current_platform.device_type,
                            seed=context.config["seed"] % 2**31, backend=BACKEND)


def _set_environment(folder: str, host: str, *, compiled: bool) -> None:
    """``folder`` is this run's own, ``host`` this host's address. Not ``compiled``: neither the model nor the small
    functions around it, whose compilation the first request of every engine would wait for."""
    os.environ.update({
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CONFIG_ROOT": folder, "VLLM_HOST_IP": host,
        "VLLM_PLUGINS": "",  # of other packages; none may change what is computed
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads are the placement's
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPU too, one process less where there is no tensor parallelism
    })
    use_interface_of(host)
    if not compiled:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would overrule the cache size of the settings
    if len(folder) <= _SOCKET_ROOM:
        os.environ["TMPDIR"] = os.environ["VLLM_RPC_BASE_PATH"] = folder
        tempfile.tempdir = None


class Process:
    """A running engine; ``followers`` are the workers on its further hosts."""

    def __init__(self, engine: Any, processes: Sequence[Any], followers: Sequence[Remote] = ()) -> None:
        self.engine = engine
        self._watch = Watch(processes)
        self.pids = self._watch.pids
        for number, follower in enumerate(followers, 1):
            self._watch.also(_end_of_host(number, follower))

    @classmethod
    async def start(cls, arguments: Mapping[str, Any], host: str, followers: Sequence[Remote]) -> Process:
        """Start an engine, on this host and those of the followers; PluginError with its last output where that
        fails."""
        if not followers:
            return cls._of(_engine(arguments))
        hosts, address = 1 + len(followers), f"{host}:{free_port(host)}"
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # this process has threads
        parts = [asyncio.to_thread(_engine, {**arguments, **over_hosts(hosts, 0, address)})]
        parts += [follower.call("join", hosts, node, address) for node, follower in enumerate(followers, 1)]
        started = [asyncio.ensure_future(part) for part in parts]
        try:
            engine, *_ = await asyncio.gather(*started)
        finally:
            for part in started:
                part.cancel()
        return cls._of(engine, followers)

    @classmethod
    def _of(cls, engine: Any, followers: Sequence[Remote] = ()) -> Process:
        return cls(engine, list(engine.engine_core.resources.engine_manager.processes), followers)

    async def call(self, work: Awaitable[T]) -> T:
        """The result of ``work``; WorkerLost where a process of the engine ends first."""
        task = asyncio.ensure_future(work)
        ended = self._watch.ended
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not self.engine.errored:
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
        if self._watch.ended.done() or self.engine.errored:
            raise await self._lost()

    async def _lost(self) -> WorkerLost:
        """Why it has ended. vLLM may know of an error before the process ends by it, or before that is seen here."""
        ended = self._watch.ended
        await asyncio.wait({ended}, timeout=_LAST_WORDS_S)
        return ended.result().again() if ended.done() else WorkerLost(
            "vLLM's engine is in error", hint="its output is in the worker's log")

    async def close(self) -> None:
        await self._watch.stop()
        self.engine.shutdown(timeout=0)


def _engine(arguments: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    config = AsyncEngineArgs(**arguments).create_engine_config()
    if config.parallel_config.distributed_executor_backend == "uni":
        # The engine's process is a copy of this one, which has imported everything. vLLM asks for a fresh one on
        # CPU, to bind threads there, which it does not do here.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except RuntimeError as error:
        raise not_started(error) from error


async def _end_of_host(number: int, follower: Remote) -> WorkerLost:
    """How the engine ended on one of its further hosts."""
    try:
        await follower.call("wait")
    except GrpoBenchError as error:
        lost = WorkerLost(f"host {number} of the engine: {error.message}", hint=error.hint)
        lost.remote_traceback = getattr(error, "remote_traceback", "")
        return lost
    return WorkerLost(f"host {number} of the engine left it")
