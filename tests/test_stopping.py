"""Signals at awkward moments: a run is stopped once, closes in any case, and says so."""

import asyncio
import os
import signal
from datetime import UTC, datetime

import pytest

from grpo_bench.contract import Kind, Status
from grpo_bench.engine import RealClock, conduct, make_folder
from grpo_bench.engine.assembly import Assembly
from grpo_bench.observers import read_events
from grpo_bench.registry import make_plan, resolve


def run_for_real(folder, *overrides, soon=None):
    """Run profile ``mock`` on the real clock; ``soon`` is called once the run is under way."""
    plan = make_plan(resolve("mock", overrides=("grpo.max_steps=1", "validation.max_tasks=1", "validation.period=1",
                                       *overrides), cwd=folder))
    run = make_folder(plan, folder / "runs", datetime.now(UTC))

    async def main():
        if soon is not None:
            asyncio.get_running_loop().call_later(0.05, soon)
        return await conduct(plan, run, RealClock(), interruptible=True)

    return asyncio.run(main()), list(read_events(run))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_start_up_interrupts_the_run(tmp_path, number):
    outcome, events = run_for_real(tmp_path, 'generator.faults=[{at = "start", kind = "hang"}]',
                                   soon=lambda: os.kill(os.getpid(), number))
    assert outcome.status is Status.INTERRUPTED
    assert (events[-1].kind, events[-1].data["status"]) == (Kind.RUN_ENDED, "interrupted")


def test_a_signal_while_parts_close_changes_nothing(tmp_path, monkeypatch):
    close = Assembly.close

    async def signalled(self):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        await close(self)

    monkeypatch.setattr(Assembly, "close", signalled)
    outcome, events = run_for_real(tmp_path, "validation.metric=off", "validation.target=off")
    assert outcome.status is Status.COMPLETED
    assert events[-1].kind == Kind.RUN_ENDED


def test_a_part_that_fails_while_it_is_stopped_does_not_hide_the_interruption(tmp_path, monkeypatch):
    async def failing(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("torn down") from None

    monkeypatch.setattr(Assembly, "start", failing)
    outcome, _ = run_for_real(tmp_path, soon=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert outcome.status is Status.INTERRUPTED
