# pyright: reportPrivateImportUsage=false
"""The transport ``broadcast``: weights by collectives, from one sender to all processes of all engines.

What both sides keep to:

- The sender opens a TCPStore on a free port and writes its ``host:port`` to the file ``store`` in the folder that the
  Transfer names as rendezvous, under a temporary name first. It serves the store until the transfer is over.
- The group has 1 + receivers x t members, t the processes of an engine. The sender is rank 0, process i of engine e is
  rank 1 + e x t + i. The first thing an engine's process does is to store the size of the group under
  ``members/<rank>``; the sender, who learns it from there, makes the group once all have come.
- Backend ``nccl`` between GPUs, else ``gloo``; one group for each transfer.
- The tensors of the Transfer are broadcast from rank 0, whole, in order, each in its own shape and dtype. A member that
  has them all stores ``done/<rank>``, and the sender leaves when all have. Nobody sends anything else, and a side that
  fails leaves the group, which ends the others' collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Listener:
    """One receiving member of the group; made when all have come. ``store`` is the sender's, as ``host:port``."""

    def __init__(self, store: str, world: int, rank: int, device: torch.device, timeout_s: float) -> None:
        host, _, port = store.rpartition(":")
        timeout = timedelta(seconds=timeout_s)
        shared = dist.TCPStore(host, int(port), None, is_master=False, timeout=timeout, wait_for_workers=False)
        shared.set(f"members/{rank}", str(world))
        self.device = device
        self._shared, self._rank = shared, rank
        self._group: Any
        if device.type == "cuda":
            options: Any = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group = dist.ProcessGroupNCCL(dist.PrefixStore("group", shared), rank, world, options)
        else:
            self._group = dist.ProcessGroupGloo(dist.PrefixStore("group", shared), rank, world, timeout)

    def take(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """The next tensor."""
        tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self.device)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait()
        return tensor

    def done(self) -> None:
        """Say that all tensors are here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._shared.set(f"done/{self._rank}", "1")

    def close(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if hasattr(group, "abort"):
            group.abort()


def received(listener: Listener, tensors: Sequence[tuple[str, str, Sequence[int]]],
             ) -> Iterator[tuple[str, torch.Tensor]]:
    """Name, dtype and shape of each announced tensor turned into the tensor."""
    for name, dtype, shape in tensors:
        yield name, listener.take(shape, dtype)
    listener.done()
