"""Passing the trainer's weights to the generator, and checking that they arrived.

Both sides work at once. When either fails, or the transfer's deadline passes, both are cancelled, so that neither waits
for the other, and the error names what each side said. The generator is paused by the caller before and resumed after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from grpo_bench.contract import (
    Boundary, Clock, Generator, GrpoBenchError, RefitError, RefitStats, TrainBatch, Trainer, Transfer,
)
from grpo_bench.contract.values import Ids

from .probe import Answers, Probe, answers

GRACE_S = 10.0
"""How long a cancelled side may take to let go."""


async def refit(trainer: Trainer, generator: Generator, transfer: Transfer, probe: Probe | None,
                clock: Clock) -> RefitStats:
    """Move the weights, then ask both sides for the probe's log-probabilities and let ``probe`` judge them; None: the
    two sides compute different things, so nothing is compared."""
    started = clock.monotonic()
    sent = await _move(trainer, generator, transfer)
    if probe is None:
        return RefitStats(transfer.version, sent, clock.monotonic() - started, None)
    try:
        async with asyncio.timeout(transfer.deadline_s):
            said = await _ask(trainer, generator, probe.sequences)
    except TimeoutError:
        raise RefitError(f"the probe after the refit to version {transfer.version} took longer than "
                         f"{transfer.deadline_s:g} s", hint="see limits.refit_s") from None
    verdict = probe.judge(transfer.version, said)
    share = verdict.followed.share if verdict.followed is not None and verdict.followed.sure else None
    return RefitStats(transfer.version, sent, clock.monotonic() - started, verdict.difference, verdict.distance, share)


async def _ask(trainer: Trainer, generator: Generator, sequences: Sequence[Ids]) -> Answers:
    if not sequences:
        return answers([], np.zeros(0, np.float32), [])
    asked = asyncio.create_task(_answer("generator", generator.probe(sequences)))
    try:  # to the trainer's end even if the generator fails: the refit may be made again, and finds the trainer idle
        ours = await _answer("trainer", trainer.log_probabilities(probe_batch(sequences), "current"))
        return answers(sequences, ours, await asked)
    finally:
        await _let_go([asked])


async def _answer(side: str, work: Awaitable[Any]) -> Any:
    try:
        return await work
    except GrpoBenchError:
        raise
    except Exception as error:
        raise RefitError(f"the {side} does not answer the probe: {type(error).__name__}: {error}",
                         hint="the traceback is in the run's engine.log", boundary=Boundary(role=side)) from error


def probe_batch(sequences: Sequence[Ids]) -> TrainBatch:
    """The sequences as a batch for a trainer's log-probabilities; every token but a row's first is asked for."""
    offsets = np.cumsum([0, *(len(sequence) for sequence in sequences)], dtype=np.int64)
    token_mask = np.ones(int(offsets[-1]), np.bool_)
    token_mask[offsets[:-1]] = False
    rows = len(sequences)
    return TrainBatch(
        step=0, ids=np.concatenate(list(sequences)).astype(np.int32), offsets=offsets,
        rollout=np.arange(rows, dtype=np.int32), token_mask=token_mask,
        gen_log_probabilities=np.zeros(int(offsets[-1]), np.float32),
        sample_mask=np.ones(rows, np.float32), advantages=np.zeros(rows, np.float32),
        rewards=np.zeros(rows, np.float32), prev_log_probabilities=None,
        n_tokens=float(token_mask.sum()), n_sequences=float(rows),
    )


async def _move(trainer: Trainer, generator: Generator, transfer: Transfer) -> int:
    sides = {"trainer": asyncio.create_task(trainer.send(transfer)),
             "generator": asyncio.create_task(generator.receive(transfer))}
    try:
        done, _ = await asyncio.wait(sides.values(), timeout=transfer.deadline_s, return_when=asyncio.FIRST_EXCEPTION)
        unfinished = [name for name, side in sides.items() if not side.done()]
        failed = next((side.exception() for side in done if not side.cancelled() and side.exception()), None)
    finally:
        await _let_go(list(sides.values()))
    if failed is None and not unfinished and not any(side.cancelled() for side in sides.values()):
        return int(sides["trainer"].result())
    said = "; ".join(f"{name}: {_outcome(side, name in unfinished, failed is None)}" for name, side in sides.items())
    raised = [name for name, side in sides.items() if side.done() and not side.cancelled() and side.exception()]
    raise RefitError(f"the refit to version {transfer.version} over {transfer.transport} failed ({said})",
                     hint=f"both sides have {transfer.deadline_s:g} s, see limits.refit_s",
                     boundary=Boundary(role=raised[0] if len(raised) == 1 else None)) from failed


async def _let_go(sides: list[asyncio.Task[Any]]) -> None:
    for side in sides:
        side.cancel()
    await asyncio.wait(sides, timeout=GRACE_S)


def _outcome(side: asyncio.Task[Any], unfinished: bool, late: bool) -> str:
    if not side.done():
        return "does not respond to cancellation"
    if not side.cancelled() and (error := side.exception()) is not None:
        return f"{type(error).__name__}: {error}"
    if unfinished:
        return "not finished in time, cancelled" if late else "cancelled"
    return "cancelled" if side.cancelled() else "done"
