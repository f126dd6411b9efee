"""The generator's engines under the run's weights: refits, and engines that break down.

Whoever works with the trainer holds the lock ``trainer``, from before an update to after the refit that belongs to it.
So whoever gets the lock finds trainer and generator at the same version.

An engine that broke down is started again as soon as that is seen: by a rollout that failed at it, before a refit, or
before a validation; several are at once, as those of a host that is lost, each maybe on another host. It has no weights
then, so no rollout starts until the next whole refit (pause, receive, probe, resume): of the update under way where
there is one, else one of the same version that is made at once. A refit during which an engine breaks down is made
again. ``limits.engine_restarts`` bounds all this; beyond it the run ends.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from ..contract import GrpoBenchError, Kind, RefitStats, Role, Transfer, WorkerLost
from ..steps import Probe, refit
from .assembly import Assembly, within
from .recorder import Recorder
from .rollouts import RolloutPool, first_error


class Serving:
    """``version`` is that of the last refit; ``probe`` is None where trainer and generator cannot be compared.
    Weights have ``transfer_s`` seconds to reach the generator. The two meet in a new folder below ``folder``; or in the
    one that ``lying`` names, where the engines read weights that lie on disk."""

    def __init__(self, parts: Assembly, pool: RolloutPool, recorder: Recorder, clock: Any, folder: Path,
                 probe: Probe | None, *, transfer_s: float, lying: Callable[[], Path] | None = None) -> None:
        self.trainer = asyncio.Lock()
        self.version = 0
        self._parts = parts
        self._pool = pool
        self._recorder = recorder
        self._clock = clock
        self._folder = folder
        self._probe = probe
        self._transfer_s = transfer_s
        self._lying = lying
        self._profile = parts.plan.profile
        self._looking = asyncio.Lock()
        self._looks = 0
        self._restarts = 0
        self._served = asyncio.Event()
        self._served.set()
        self._transfers = 0

    async def pause(self, *, drained: bool = True) -> None:
        """Let no engine sample, with every engine there. The caller holds ``trainer``. Where the pool was not
        ``drained``, requests may have to end first, which can take them as long as a rollout."""
        limits = self._profile.limits
        seconds, setting = (limits.refit_s, "limits.refit_s") if drained else (
            max(limits.refit_s, limits.rollout_s), "limits.rollout_s")
        while True:
            await self._restart_lost("")
            before = self._restarts
            try:
                with self._parts.attributed(Role.GENERATOR, step=self._recorder.step):
                    pausing = self._parts.generator.pause(self._profile.schedule.in_flight)
                    await within(pausing, seconds, "pausing the generator", setting)
            except GrpoBenchError as error:
                await self._restart_lost(error.message)
                if self._restarts == before:
                    raise
            else:
                if self._restarts == before:  # else one that was paused has been lost since, and is being started
                    return

    async def refit(self, version: int) -> None:
        """Give every engine the trainer's weights and let rollouts go on. The caller holds ``trainer``, and has paused
        the generator where it had weights before."""
        while True:
            before = self._restarts
            try:
                stats = await self._pass_on(version)
            except GrpoBenchError as error:
                await self._restart_lost(error.message)
                if self._restarts == before:
                    raise
            else:
                if self._restarts == before:
                    break
            await self.pause()
        self.version = version
        self._served.set()
        self._pool.release()
        growth = {} if stats.probe_distance is None else {
            "probe_distance": stats.probe_distance, "probe_followed": stats.probe_followed}
        self._recorder.emit(Kind.REFIT, version=version, bytes=stats.bytes, seconds=stats.seconds,
                            probe_difference=stats.probe_difference, transport=self._parts.plan.transport, **growth)

    async def recover(self, cause: str) -> None:
        """Return when no engine is lost and all have the trainer's weights; ``cause`` is what somebody saw of it."""
        await self._restart_lost(cause, self._looks)
        while not self._served.is_set():
            async with self._until_served() as alone:
                if alone and not self._served.is_set():
                    await self.pause(drained=False)
                    await self.refit(self.version)

    @asynccontextmanager
    async def _until_served(self) -> AsyncIterator[bool]:
        """Hold ``trainer`` (True), or nothing once all engines have weights: who holds it meanwhile may wait for the
        rollout on whose behalf this is asked."""
        held = asyncio.create_task(self.trainer.acquire())
        served = asyncio.create_task(self._served.wait())
        try:
            await asyncio.wait((held, served), return_when=asyncio.FIRST_COMPLETED)
            yield held.done()
        finally:
            served.cancel()
            if not held.cancel() and not held.cancelled():
                self.trainer.release()

    async def _pass_on(self, version: int) -> RefitStats:
        parts, limits, step = self._parts, self._profile.limits, self._recorder.step
        with self._meeting(version) as folder:
            with parts.attributed(Role.TRAINER, step=version):
                tensors = parts.trainer.tensors()
            transfer = Transfer(version, parts.plan.transport, str(folder), tensors, self._profile.refit.chunk_bytes,
                                self._transfer_s, receivers=len(parts.generator.addresses()))
            with parts.between(step=version):
                stats = await refit(parts.trainer, parts.generator, transfer, self._probe, self._clock)
            with parts.attributed(Role.GENERATOR, step=step if step is not None else version):
                await within(parts.generator.resume(), limits.refit_s, "resuming the generator", "limits.refit_s")
        return stats

    @contextmanager
    def _meeting(self, version: int) -> Iterator[Path]:
        if self._lying is not None:
            yield self._lying()
            return
        self._transfers += 1
        folder = self._folder / f"{self._transfers}-v{version}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _restart_lost(self, cause: str, seen: int | None = None) -> None:
        """Start again what is lost, one caller at a time; nothing where somebody looked after ``seen`` looks."""
        async with self._looking:
            if seen is not None and self._looks > seen:
                return
            self._looks += 1
            if engines := await self._lost():
                await self._restart(engines, cause)

    async def _lost(self) -> Sequence[int]:
        with self._parts.attributed(Role.GENERATOR, step=self._recorder.step):
            return await within(self._parts.generator.lost(), self._profile.limits.refit_s,
                                "asking the generator for lost engines", "limits.refit_s")

    async def _why(self, seen: str) -> str:
        """What the generator says of itself where that is an error, else what was seen of it."""
        try:
            async with asyncio.timeout(self._profile.limits.refit_s):
                await self._parts.generator.health()
        except GrpoBenchError as error:
            return error.message
        except TimeoutError:
            pass
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return seen or "it serves nothing any more"

    async def _restart(self, engines: Sequence[int], seen: str) -> None:
        limits = self._profile.limits
        # All at once, before anything is awaited: a refit that ends meanwhile has to see that it missed an engine.
        self._pool.hold()
        self._served.clear()
        self._restarts += len(engines)
        cause = await self._why(seen)
        with self._parts.attributed(Role.GENERATOR, step=self._recorder.step):
            if self._restarts > limits.engine_restarts:
                which = f"engine{'s' * (len(engines) > 1)} {', '.join(map(str, engines))}"
                raise WorkerLost(f"{which} of the generator broke down: {cause}",
                                 hint=f"limits.engine_restarts = {limits.engine_restarts} is how often engines are "
                                      "started again; their output is in workers/")
        try:
            async with asyncio.TaskGroup() as tasks:
                for engine in engines:
                    tasks.create_task(self._started(engine, cause), name=f"engine {engine}")
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None

    async def _started(self, engine: int, cause: str) -> None:
        limits, started = self._profile.limits, self._clock.monotonic()
        with self._parts.attributed(Role.GENERATOR, step=self._recorder.step):
            async with self._pool.replacing(engine):
                await within(self._parts.generator.restart(engine), limits.start_s, f"starting engine {engine} again",
                             "limits.start_s")
        seconds = self._clock.monotonic() - started
        self._recorder.alarm("engine_lost", f"engine {engine} of the generator broke down ({cause}) and was started "
                             f"again in {seconds:.1f} s", engine=engine, cause=cause, seconds=seconds)
