# pyright: reportMissingImports=false
"""The policy's weights under their Hugging Face names, one after the other.

Bridge gathers each weight from all ranks and yields it on each of them: reading its stream is collective work, in one
order. :class:`Exporter` reads it once at the start, keeping nothing, to know names, order, shapes and dtypes, and then
anew for each transfer, hash or folder; what was yielded is let go before the next weight, so that no rank holds the
model twice.

While rank 0 waits for receivers, the others wait for rank 0. They read ahead by no more than a *window*, the weights
that fit in one chunk, and then ask whether to go on. So a transfer that fails leaves all ranks at the end of a window,
fit for the next call, and no collective of the model's groups is outstanding for longer than one window takes.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grpo_bench.contract import PluginError, RefitError, TensorSpec, Transfer
from grpo_bench.steps.transport import send_tensors

from . import broadcast
from .headers import tensors_of
from .hf_folder import HfFolder, size_of

_NOT_TRAINED = ("mtp.", "model.mtp.", "model.visual.", "visual.")
"""What a checkpoint may have beside the policy's weights: further prediction heads, and a vision tower."""
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_LOOK_S = 0.05
"""How often rank 0 looks whether a transfer was given up."""
_PATIENCE = timedelta(days=7)
"""How long ranks wait for rank 0 between windows; whoever called decides when that is too long."""


class Exporter:
    """Made on all ranks at once; so are all calls. ``policy`` has Bridge, the model's chunks and the provider; ``host``
    is where engines reach this rank's."""

    def __init__(self, policy: Any, checkpoint: Path, host: str) -> None:
        self._policy, self._checkpoint, self._host = policy, checkpoint, host
        self._rank = dist.get_rank()
        self._control: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._tied = bool(policy.provider.share_embeddings_and_output_weights)
        self._tasks = policy.bridge.get_conversion_tasks(policy.chunks)
        self.specs = tuple(TensorSpec(name, tuple(weight.shape), str(weight.dtype).removeprefix("torch."))
                           for name, weight in self._weights())
        _compare(self.specs, tensors_of(checkpoint), self._tied)

    def send(self, transfer: Transfer, given_up: threading.Event) -> int:
        """Send over the transfer's transport; the bytes sent, 0 on all ranks but the first. Once ``given_up`` is set,
        it ends with an error, and the ranks are free when the window has ended."""
        if transfer.tensors != self.specs:
            raise RefitError("the transfer announces other tensors than this trainer has")
        windows = _windows(self.specs, transfer.chunk_bytes)
        if self._rank == 0:
            return self._lead(transfer, windows, given_up)
        stream = self._weights()
        for window in windows:
            if not self._go_on():
                break
            for _ in range(window):
                next(stream)
        return 0

    def sha256(self) -> str:
        """Over names and bytes of all weights as this rank sees them, whatever the order of the stream."""
        digests = {name: hashlib.sha256(_buffer(weight)).digest() for name, weight in self._weights()}
        whole = hashlib.sha256()
        for name, digest in sorted(digests.items()):
            whole.update(name.encode() + b"\0" + digest)
        return whole.hexdigest()

    def save_hf(self, folder: Path) -> None:
        """Write an HF folder that all ranks see; done when every rank has its shards on the disk."""
        writer = HfFolder(folder, self._checkpoint, self.specs, self._rank, dist.get_world_size())
        for name, weight in self._weights():
            writer.add(name, weight)
        writer.close()
        dist.barrier(group=self._control)

    @torch.no_grad()
    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names as in the checkpoint, without the rows that Megatron adds so that ranks can share a vocabulary."""
        policy, rows = self._policy, self._policy.vocabulary
        for name, weight in policy.bridge.export_hf_weights(policy.chunks, cpu=False, show_progress=False,
                                                            conversion_tasks=self._tasks):
            if not (self._tied and name == _HEAD):
                padded = name == _HEAD or name.endswith(_EMBEDDING)
                yield name, (weight[:rows] if padded else weight).detach()

    def _lead(self, transfer: Transfer, windows: list[int], given_up: threading.Event) -> int:
        source = _Pulled(self._weights(), windows, self._tell)
        try:
            if transfer.transport == broadcast.NAME:
                return self._broadcast(transfer, source, given_up)
            return asyncio.run(_through_files(transfer, source, given_up))
        finally:
            source.end()

    def _broadcast(self, transfer: Transfer, source: _Pulled, given_up: threading.Event) -> int:
        sender = broadcast.Sender(transfer, self._host, given_up.is_set)
        try:
            count = sum(sender.put(source.take(spec)) for spec in transfer.tensors)
            sender.finish()
            return count
        finally:
            sender.close()

    def _tell(self, go_on: bool) -> None:
        dist.broadcast(torch.tensor([int(go_on)]), 0, group=self._control)

    def _go_on(self) -> bool:
        answer = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(answer, 0, group=self._control)
        return bool(answer.item())


async def _through_files(transfer: Transfer, source: _Pulled, given_up: threading.Event) -> int:
    task = asyncio.create_task(send_tensors(transfer, lambda spec: _buffer(source.take(spec))))
    while not task.done():
        if given_up.is_set():
            task.cancel()
        await asyncio.wait({task}, timeout=_LOOK_S)
    if task.cancelled():
        raise RefitError(f"sending weight version {transfer.version} was cancelled")
    return task.result()


class _Pulled:
    """Rank 0's side of the stream: ``take`` gives the next weight, telling the others to go on where a window begins;
    ``end`` reads what is left of a window that has begun, and tells them to stop."""

    def __init__(self, stream: Iterator[tuple[str, torch.Tensor]], windows: list[int], tell: Any) -> None:
        self._stream, self._windows, self._tell = stream, iter(windows), tell
        self._left, self._windows_left = 0, len(windows)

    def take(self, spec: TensorSpec) -> torch.Tensor:
        if not self._left:
            self._left = next(self._windows)
            self._windows_left -= 1
            self._tell(True)
        self._left -= 1
        name, weight = next(self._stream)
        if name != spec.name:
            raise RefitError(f"the model gave {name} where {spec.name} was announced")
        return weight

    def end(self) -> None:
        for _ in range(self._left):
            next(self._stream, None)  # nothing where reading it has failed
        self._left = 0
        if self._windows_left:
            self._tell(False)


def _windows(specs: tuple[TensorSpec, ...], room: int) -> list[int]:
    """How many tensors go together, so that they fit in ``room`` bytes; one that does not goes alone."""
    counts, held = [], 0
    for spec in specs:
        size = size_of(spec)
        if counts and held + size <= room:
            counts[-1] += 1
            held += size
        else:
            counts.append(1)
            held = size
    return counts


def _buffer(weight: torch.Tensor) -> memoryview:
    plain: Any = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(plain)


def _compare(mine: tuple[TensorSpec, ...], stored: tuple[TensorSpec, ...], tied: bool) -> None:
    """PluginError where the model does not have the checkpoint's weights, so that no generator could take them."""
    shapes = {spec.name: spec.shape for spec in stored if not (tied and spec.name == _HEAD)}
    for spec in mine:
        if spec.name not in shapes:
            raise PluginError(f"Megatron Bridge exports {spec.name}, which the policy's checkpoint does not have")
        if spec.shape != shapes[spec.name]:
            raise PluginError(f"Megatron Bridge exports {spec.name} as {spec.shape}, the policy's checkpoint has it as "
                              f"{shapes[spec.name]}")
    names = {spec.name for spec in mine}
    if lacking := [name for name in shapes if name not in names and not name.startswith(_NOT_TRAINED)]:
        raise PluginError(f"Megatron Bridge does not export {lacking[0]}, which the policy's checkpoint has",
                          hint="this policy cannot be trained here")
