# pyright: reportPrivateImportUsage=false
"""The transport ``broadcast``: weights by collectives, from rank 0 to all processes of all engines.

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

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grpo_bench.contract import DeadlineExceeded, RefitError, Transfer

NAME, FILE = "broadcast", "store"
_LOOK = timedelta(seconds=1)


class Sender:
    """Rank 0 of the group, for one transfer; made when all members have come. ``host`` is where they reach this one,
    ``given_up`` is asked now and then."""

    def __init__(self, transfer: Transfer, host: str, given_up: Callable[[], bool]) -> None:
        self._transfer, self._given_up = transfer, given_up
        self._timeout = timedelta(seconds=transfer.deadline_s)
        self._store = dist.TCPStore(host, 0, None, is_master=True, wait_for_workers=False, timeout=self._timeout)
        _publish(Path(transfer.rendezvous) / FILE, f"{host}:{self._store.port}")
        self._await("members/1")
        self._world = int(self._store.get("members/1"))
        for rank in range(2, self._world):
            self._await(f"members/{rank}")
        self._group: Any = _group(dist.PrefixStore("group", self._store), self._world, self._timeout)

    def put(self, weight: torch.Tensor) -> int:
        """Send the next tensor; returns its bytes."""
        if self._given_up():
            raise RefitError("the transfer was cancelled")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        weight = weight.contiguous()
        self._group.broadcast([weight], options).wait()
        return weight.numel() * weight.element_size()

    def finish(self) -> None:
        """Wait until every member has every tensor."""
        for rank in range(1, self._world):
            self._await(f"done/{rank}")

    def close(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if hasattr(group, "abort"):
            group.abort()

    def _await(self, key: str) -> None:
        looks = max(1, int(self._timeout / _LOOK))
        for _ in range(looks):
            if self._given_up():
                raise RefitError("the transfer was cancelled")
            try:
                self._store.wait([key], min(_LOOK, self._timeout))
                return
            except dist.DistStoreError:
                continue
        raise DeadlineExceeded(f"{key} did not come for weight version {self._transfer.version} within "
                               f"{self._transfer.deadline_s:g} s", hint="see limits.refit_s")


def _group(store: Any, world: int, timeout: timedelta) -> Any:
    if torch.cuda.is_available():
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, 0, world, options)
    return dist.ProcessGroupGloo(store, 0, world, timeout)


def _publish(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)
