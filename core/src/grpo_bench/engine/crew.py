"""The rollout workers of a run: which of them serve, and what becomes of one whose process or host is lost.

A worker that is lost is started again in the background, while its rollouts go to the others; where no other serves,
they wait for it. The fabric may put it on another host. A worker that cannot be started again, or that is lost time and
again before a rollout of it has ended, is given up: the others have its work from then on. When none is left, whoever
waits for one gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..contract import Boundary, GrpoBenchError, LimitSettings, WorkerGroup, WorkerLost
from .assembly import crossing, within
from .recorder import Recorder

_FRUITLESS = 3
"""How often in a row a worker may be lost before a rollout of it has ended."""


class Crew:
    """``incarnations`` counts the starts of each worker, so that what is said of an earlier one is known as such."""

    def __init__(self, workers: WorkerGroup, limits: LimitSettings, recorder: Recorder, clock: Any,
                 owner: Boundary) -> None:
        self._workers = workers
        self._limits = limits
        self._recorder = recorder
        self._clock = clock
        self._owner = owner
        self._load = [0] * workers.size
        self._serving = [True] * workers.size
        self._fruitless = [0] * workers.size
        self._returning: dict[int, asyncio.Task[None]] = {}
        self._gone: GrpoBenchError | None = None
        self.incarnations = [0] * workers.size

    def serves(self, rank: int) -> bool:
        return self._serving[rank]

    def least_loaded(self) -> int:
        """The worker to give more to: one that serves, else one that will."""
        ranks = range(self._workers.size)
        return min(ranks, key=lambda rank: (not self._serving[rank], rank not in self._returning, self._load[rank]))

    @contextmanager
    def loaded(self, ranks: list[int]) -> Iterator[None]:
        """Count a rollout for each of ``ranks``; ``moved`` changes them."""
        for rank in ranks:
            self._load[rank] += 1
        try:
            yield
        finally:
            for rank in ranks:
                self._load[rank] -= 1

    async def moved(self, ranks: list[int], index: int) -> None:
        """Give rollout ``index`` of ``ranks`` to another worker, waiting for one where none serves."""
        while not any(self._serving):
            if not self._returning:
                assert self._gone is not None
                raise WorkerLost(f"no rollout worker is left: {self._gone.message}", hint=self._gone.hint,
                                 boundary=self._gone.boundary)
            await asyncio.wait(self._returning.values(), return_when=asyncio.FIRST_COMPLETED)
        self._load[ranks[index]] -= 1
        ranks[index] = self.least_loaded()
        self._load[ranks[index]] += 1

    def finished(self, rank: int) -> None:
        """A rollout of this worker has ended."""
        self._fruitless[rank] = 0

    def lost(self, rank: int, incarnation: int, error: WorkerLost) -> None:
        """Start a lost worker again, once for all rollouts that it took along."""
        if self.incarnations[rank] != incarnation or not self._serving[rank]:
            return
        self._serving[rank] = False
        self._fruitless[rank] += 1
        task = asyncio.create_task(self._return(rank, error), name=f"rollout worker {rank}")
        self._returning[rank] = task
        task.add_done_callback(lambda _: self._returning.pop(rank))

    async def started(self, rank: int) -> None:
        """Let a new worker prepare for rollouts."""
        self.incarnations[rank] += 1
        await within(self._workers.call(rank, "start"), self._limits.start_s,
                     f"the start of rollout worker {rank}", "limits.start_s")

    async def close(self) -> None:
        """Leave those that are not back yet to the end of their group."""
        tasks = list(self._returning.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _return(self, rank: int, lost: WorkerLost) -> None:
        began = self._clock.monotonic()
        facts: dict[str, Any] = {"worker": rank, "cause": lost.message}
        try:
            with crossing(self._owner):
                await self._again(rank, lost)
        except GrpoBenchError as error:
            self._gone = error
            left = sum(self._serving) + len(self._returning) - 1
            others = f"{left} others have its work" if left else "no other is left"
            self._recorder.alarm("worker_lost", f"rollout worker {rank} ended ({lost.message}) and is given up "
                                 f"({error.message}); {others}", **facts)
            return
        self._serving[rank] = True
        seconds = self._clock.monotonic() - began
        self._recorder.alarm("worker_lost", f"rollout worker {rank} ended ({lost.message}) and was started again in "
                             f"{seconds:.1f} s", **facts, seconds=seconds)

    async def _again(self, rank: int, lost: WorkerLost) -> None:
        if self._fruitless[rank] >= _FRUITLESS:
            raise WorkerLost(f"rollout worker {rank} was lost {_FRUITLESS} times before a rollout of it had ended: "
                             f"{lost.message}", hint="its output is in workers/")
        await within(self._workers.restart(rank), self._limits.start_s, f"starting rollout worker {rank} again",
                     "limits.start_s")
        await self.started(rank)
