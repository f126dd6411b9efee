"""The schedule that runs the six steps.

One step: start the prompts that the trainer's version opens -> wait for this step's groups -> log-probabilities ->
masks and advantages -> update -> drain or keep what is in flight -> refit -> validate -> checkpoint. The synchronous
schedule is max age 0: nothing is in flight during an update. The first refit, of version 0, comes before any rollout.
Where validations are deferred, a step that is due saves the weights in place of validating them. Told that time will be
up, the loop ends after the step under way, with a full checkpoint of it.

The loop owns the order and the phases; the parts own the work. It is the critical path, so the phase it is in is what
the run's wall clock is charged to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import BatchError, Group, Kind, Phase, PluginError, Purpose, Role, Status, TrainBatch, UpdateStats
from ..steps import Probe, apply_masks, build_batch, needs_prev, needs_reference, with_advantages
from .assembly import Assembly, within
from .buffer import GroupBuffer, Ticket
from .checkpoints import TRAINER, CheckpointStore, Restored, name_of
from .clock import aside
from .probes import random_probes, sampled_probes
from .recorder import Recorder
from .rollouts import RolloutPool, pool_of
from .saving import Saver
from .serving import Serving
from .validating import Validator


@dataclass(slots=True)
class Progress:
    """How far the run is: completed steps, which is the trainer's weight version too, and whether the target is met."""

    step: int = 0
    met: bool = False


class Loop:
    """Runs the steps on started parts."""

    def __init__(self, parts: Assembly, recorder: Recorder, observers: Any, store: CheckpointStore, clock: Any,
                 run: str, transport_folder: Path) -> None:
        profile = parts.plan.profile
        self._parts = parts
        self._profile = profile
        self._recorder = recorder
        self._observers = observers
        self._store = store
        self._clock = clock
        self._saver = Saver(parts, store, recorder, observers, clock, run)
        self._train = parts.plan.training_tasks
        self._pool = pool_of(parts, recorder, clock, lambda cause: self._serving.recover(cause))
        self._buffer = GroupBuffer(prompts_per_step=profile.grpo.prompts_per_step, max_age=profile.schedule.max_age,
                                   max_steps=profile.grpo.max_steps, tasks=len(self._train))
        self._arrived = asyncio.Event()
        self._rolling: set[asyncio.Task[None]] = set()
        self._probe = Probe(profile.refit.probe_bound, profile.refit.probe_growth, kept=random_probes(parts.plan))
        self._serving = Serving(parts, self._pool, recorder, clock, transport_folder,
                                None if parts.plan.incomparable else self._probe, transfer_s=profile.limits.refit_s)
        self._validator = Validator(parts, self._pool, self._serving, recorder, observers, clock)
        self._deferred = profile.validation.deferred
        self._updated_at = ""
        self._saved: int | None = None
        self._stepping = False
        self._ending = False
        self.progress = Progress()

    @property
    def pool(self) -> RolloutPool:
        return self._pool

    def missing(self) -> list[int]:
        """The prompts that the current step still waits for."""
        return self._buffer.missing(self.progress.step)

    async def run(self, restored: Restored | None) -> Status:
        """All steps until none is left, or the target is met; INTERRUPTED where it was told to end before that."""
        if restored is not None:
            await self._restore(restored)
        if not self._over():
            await self._first_refit()
        if restored is not None:
            self._go_on(restored)
        elif not self._deferred:
            await self._validate_if_due(0)
        if not self._over():
            await self._steps()
        if not self._over():
            return Status.INTERRUPTED
        if self._deferred:
            return Status.TRAINED
        if self.progress.met:
            return Status.TARGET_MET
        return Status.COMPLETED if self._profile.validation.metric is None else Status.TARGET_MISSED

    def end_after_step(self) -> bool:
        """End when the step under way is over and saved; False where none is, so that there is nothing to save."""
        self._ending = self._stepping
        return self._ending

    async def _steps(self) -> None:
        self._stepping = True
        async with asyncio.TaskGroup() as rollouts:
            while not self._over() and not self._ending:
                step = self._recorder.step = self.progress.step + 1
                await self._step(step, rollouts)
                if self._deferred:
                    await self._save_weights_if_due(step)
                else:
                    await self._validate_if_due(step)
                await self._checkpoint_if_due(step)
            if self._ending and not self._over():
                await self._checkpoint(self.progress.step)
            if self._rolling:
                self._recorder.enter(Phase.DRAIN)
            for task in self._rolling:
                task.cancel()

    def _over(self) -> bool:
        return self.progress.met or self.progress.step >= self._profile.grpo.max_steps

    async def _first_refit(self) -> None:
        if (why := self._parts.plan.incomparable) and not self._parts.plan.modelled:
            self._recorder.alarm("probe_not_compared", f"refits are not checked by log-probabilities: {why}")
        self._recorder.enter(Phase.REFIT)
        async with self._serving.trainer:
            await self._serving.refit(self.progress.step)

    async def finish(self) -> str:
        """Write the final weights if asked for; returns their hash."""
        self._recorder.enter(Phase.CHECKPOINT)
        saved = self._deferred and self._validator.is_due(self.progress.step)
        if self._profile.checkpoint.final and not saved:
            await self._saver.save("final", "weights")
        with self._parts.attributed(Role.TRAINER):
            return await within(self._parts.trainer.weights_sha256(), self._profile.limits.checkpoint_s,
                                "hashing the weights", "limits.checkpoint_s")

    async def _step(self, step: int, rollouts: asyncio.TaskGroup) -> None:
        started = self._clock.monotonic()
        target = step - 1
        self._recorder.enter(Phase.ROLLOUT)
        self._buffer.advance(target)
        self._start_wanted(rollouts)
        while not self._buffer.ready(target):
            self._arrived.clear()
            await self._arrived.wait()
        groups = self._buffer.take(target)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        summary = self._validator.checked(trajectories, step)
        async with self._serving.trainer:
            batch = await self._prepare(step, groups)
            await self._update(step, batch)
            await self._hold_rollouts()
            self.progress.step = step
            self._probe.sampled = sampled_probes(groups) or self._probe.sampled
            self._recorder.enter(Phase.REFIT)
            await self._serving.refit(step)
            self._pool.open_gates()
        self._recorder.enter(Phase.JOURNAL)
        self._recorder.emit(Kind.STEP, version=step, seconds=self._clock.monotonic() - started,
                            reward_mean=summary.mean, rollouts=summary.rollouts,
                            sampled_tokens=sum(trajectory.sampled_tokens for trajectory in trajectories))

    def _start_wanted(self, rollouts: asyncio.TaskGroup) -> None:
        limit = self._profile.schedule.prompts_in_flight
        while (limit is None or len(self._buffer.in_flight) < limit) and (ticket := self._buffer.start()) is not None:
            task = rollouts.create_task(self._roll(ticket, rollouts), name=f"group {ticket.group_id}")
            self._rolling.add(task)
            task.add_done_callback(self._rolling.discard)

    async def _roll(self, ticket: Ticket, rollouts: asyncio.TaskGroup) -> None:
        name = f"t{ticket.group_id}" + (f"e{ticket.attempt}" if ticket.attempt else "")
        group = await self._pool.group(
            self._train[ticket.position.index], name=name, group_id=ticket.group_id, position=ticket.position,
            target=ticket.target, size=self._profile.grpo.generations_per_prompt, purpose=Purpose.TRAIN)
        if self._buffer.finish(group):
            self._observers.group_finished(group)
            self._recorder.emit(
                Kind.GROUP, group_id=group.group_id, task_id=group.task_id, epoch=group.position.epoch,
                index=group.position.index, target=group.target, oldest_version=group.oldest_version,
                rewards=[trajectory.reward for trajectory in group.trajectories])
            self._arrived.set()
        else:
            self._recorder.alarm("group_evicted", f"prompt {group.group_id} is too old for its step and starts again")
        self._start_wanted(rollouts)

    async def _prepare(self, step: int, groups: Sequence[Group]) -> TrainBatch:
        """Log-probabilities, masks, advantages, in the contract's order."""
        grpo = self._profile.grpo
        self._recorder.enter(Phase.LOG_PROBABILITIES)
        batch, report = build_batch(step, groups, grpo)
        prev = await self._log_probabilities(step, batch, "current") if needs_prev(grpo) else None
        reference = await self._log_probabilities(step, batch, "reference") if needs_reference(grpo) else None
        self._recorder.enter(Phase.ADVANTAGES)
        with self._parts.between(step=step):
            batch, report = apply_masks(batch, report, prev, grpo)
        batch, report = with_advantages(replace(batch, reference_log_probabilities=reference), report, grpo)
        self._recorder.emit(
            Kind.BATCH, rows=batch.rows, rollouts=report.rollouts, tokens=report.tokens, n_tokens=batch.n_tokens,
            n_sequences=batch.n_sequences, reward_mean=report.reward_mean, not_samples=dict(report.not_samples),
            advantage_zero_groups=report.zero_advantage_groups, masked=dict(report.masked),
            ages={str(age): count for age, count in report.ages.items()}, metrics=dict(report.metrics))
        for name, message in report.alarms.items() if not self._parts.plan.modelled else ():
            self._recorder.alarm(name, message)
        return batch

    async def _log_probabilities(self, step: int, batch: TrainBatch, weights: Any) -> Any:
        with self._parts.attributed(Role.TRAINER, step=step):
            return await within(self._parts.trainer.log_probabilities(batch, weights), self._profile.limits.update_s,
                                "log-probabilities", "limits.update_s")

    async def _update(self, step: int, batch: TrainBatch) -> None:
        self._recorder.enter(Phase.UPDATE)
        with self._parts.attributed(Role.TRAINER, step=step):
            stats = await within(self._parts.trainer.update(batch), self._profile.limits.update_s, "the update",
                                 "limits.update_s")
            _check(stats)
        self._updated_at = stats.ended_at
        self._recorder.emit(Kind.UPDATE, loss=stats.loss, grad_norm=stats.grad_norm, learning_rate=stats.learning_rate,
                            tokens=stats.tokens, ended_at=stats.ended_at, metrics=dict(stats.metrics))

    async def _hold_rollouts(self) -> None:
        """Drain rollouts, or leave them to be preempted by the generator."""
        self._recorder.enter(Phase.DRAIN)
        if self._profile.schedule.in_flight == "drain":
            await self._pool.drain()
        await self._serving.pause()

    async def _validate_if_due(self, step: int) -> None:
        if self._validator.is_due(step):
            self.progress.met = await self._validator.validate(step)

    async def _save_weights_if_due(self, step: int) -> None:
        if self._validator.is_due(step):
            async with self._serving.trainer:
                self._recorder.enter(Phase.CHECKPOINT)
                await self._saver.save_weights(step, self._updated_at, self._probe)

    async def _checkpoint_if_due(self, step: int) -> None:
        period = self._profile.checkpoint.period
        if period and step % period == 0:
            await self._checkpoint(step)

    async def _checkpoint(self, step: int) -> None:
        if self._saved == step:
            return
        async with self._serving.trainer:
            self._recorder.enter(Phase.CHECKPOINT)
            await self._saver.save(name_of(step), "full", self._state)
        self._saved = step
        await aside(self._store.prune)

    def _state(self, _: Path) -> dict[str, Any]:
        return {"step": self.progress.step, "seq": self._recorder.next_seq, "met": self.progress.met,
                "buffer": self._buffer.snapshot(), "probes": list(self._probe.sampled),
                "probe_first": self._probe.first}

    async def _restore(self, restored: Restored) -> None:
        folder = restored.folder.absolute() / TRAINER
        with self._parts.attributed(Role.TRAINER):
            await within(self._parts.trainer.load(folder), self._profile.limits.checkpoint_s, "loading the checkpoint",
                         "limits.checkpoint_s")
        self._buffer.restore(restored.state["buffer"])
        self._probe.sampled, self._probe.first = list(restored.state["probes"]), restored.state["probe_first"]
        self.progress = Progress(restored.step, restored.state["met"])

    def _go_on(self, restored: Restored) -> None:
        """What is recorded from here on is the run's history again, and not the set-up of a later attempt."""
        self._recorder.step = restored.step
        if not restored.recorded:
            self._saver.written(restored.folder, "full", 0.0)


def _check(stats: UpdateStats) -> None:
    """The weights cannot be trusted after an update whose loss or gradient is no number, nor a run be timed by one
    whose end is no moment."""
    try:
        timed = datetime.fromisoformat(stats.ended_at).tzinfo is not None
    except (TypeError, ValueError):
        timed = False
    if not timed:
        raise PluginError(f"the update ended at {stats.ended_at!r}, which should be a time in ISO 8601 with its offset "
                          "from UTC", hint="an error of the trainer's plugin")
    if not np.isfinite([stats.loss, stats.grad_norm]).all():
        raise BatchError(f"the update's loss is {stats.loss:g} and the norm of its gradient {stats.grad_norm:g}",
                         hint="see the batch in events.jsonl; a lower learning rate may be needed")
