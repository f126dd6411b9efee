# pyright: reportMissingImports=false
"""A change of an engine's weights through vLLM's official life cycle: start, updates, finish, then an empty prefix
cache and a version that vLLM confirms. What an update does in the engine's processes is in :mod:`.backend`.

A transfer that fails leaves vLLM in the middle; the next one begins by abandoning that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpo_bench.contract import RefitError, Transfer
from grpo_bench.steps.transport import NAME, receive_chunks

from .process import Process

BROADCAST = "broadcast"
_STORE = "store"
_POLL_S = 0.01
HF_FOLDER = "hf_folder"


class Updates:
    """``rank`` is the engine's, ``processes`` the number of its processes."""

    def __init__(self, process: Process, rank: int, processes: int) -> None:
        self._process, self._rank, self._processes = process, rank, processes
        self._engine = process.engine

    async def start(self) -> None:
        """Once, when the engine has started."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._process.call(self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={})))

    async def take(self, transfer: Transfer) -> None:
        """Take the weights of ``transfer``; anything raised means that the engine has none."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        call, engine, version = self._process.call, self._engine, str(transfer.version)
        await self._process.rpc("grpo_bench_abandon_update")
        await call(engine.start_weight_update())
        async for update in self._updates(transfer):
            await call(engine.update_weights(WeightTransferUpdateRequest(update_info=update)))
        await call(engine.finish_weight_update(version))
        if not await call(engine.reset_prefix_cache(reset_running_requests=True)):
            raise RefitError(f"the prefix cache was not reset after weight version {version}",
                             hint="cached prefixes would be those of the weights before")
        if (known := await call(engine.get_weight_version())) != version:
            raise RefitError(f"vLLM says that it has weight version {known}, not {version}")

    async def _updates(self, transfer: Transfer) -> AsyncIterator[dict[str, Any]]:
        """What the engine's processes are told, one step at a time; the step before is over when the next is asked."""
        if transfer.transport == NAME:
            async for chunk in receive_chunks(transfer, self._rank):
                pieces = [(piece.spec.name, piece.spec.dtype, list(piece.spec.shape), piece.start, piece.stop)
                          for piece in chunk.pieces]
                yield {"chunk": {"path": str(chunk.path), "pieces": pieces}}
        elif transfer.transport == HF_FOLDER:
            for file in _files(transfer):
                yield {"file": file}
        elif transfer.transport == BROADCAST:
            yield {"broadcast": {
                "store": await _store(transfer), "world": 1 + transfer.receivers * self._processes,
                "first": 1 + self._rank * self._processes, "timeout_s": transfer.deadline_s,
                "tensors": [(spec.name, spec.dtype, list(spec.shape)) for spec in transfer.tensors]}}
        else:
            raise RefitError(f"unknown transport {transfer.transport!r}",
                             hint=f"known here: {NAME}, {HF_FOLDER}, {BROADCAST}")


def _files(transfer: Transfer) -> list[str]:
    """The files of a folder in HF form; RefitError where there are none."""
    found = sorted(map(str, Path(transfer.rendezvous).glob("*.safetensors")))
    if not found:
        raise RefitError(f"{transfer.rendezvous} holds no weights of version {transfer.version}",
                         hint="a folder in HF form has *.safetensors files")
    return found


async def _store(transfer: Transfer) -> str:
    """Where the sender of a broadcast can be met, once it says so; see :mod:`.broadcast`."""
    path = Path(transfer.rendezvous) / _STORE
    for _ in range(int(transfer.deadline_s / _POLL_S) + 1):
        if path.exists():
            return path.read_text("utf-8")
        await asyncio.sleep(_POLL_S)
    raise RefitError(f"nobody broadcasts weight version {transfer.version}: {path} was not there within "
                     f"{transfer.deadline_s:g} s", hint="see limits.refit_s")
