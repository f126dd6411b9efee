"""The watchdog, in virtual time."""

import asyncio
import threading

import pytest
import structlog

from grpo_bench.contract import Kind
from grpo_bench.engine.clock import run_virtual
from grpo_bench.engine.recorder import Recorder
from grpo_bench.engine.watchdog import turning, watch


def stalls(describe, *, busy_until_s):
    """The STALL events of 100 seconds with a patience of 30, the first ``busy_until_s`` of them with progress."""
    events = []

    async def main(clock):
        recorder = Recorder(clock, events.append)
        watching = asyncio.create_task(watch(recorder, clock, 30.0, describe, structlog.get_logger()))
        await asyncio.sleep(busy_until_s)
        recorder.alarm("something", "moves")
        await asyncio.sleep(100 - busy_until_s)
        watching.cancel()

    run_virtual(main)
    return [event for event in events if event.kind == Kind.STALL]


def test_it_reports_once_for_each_spell_of_patience():
    async def describe():
        return {"waiting": "rain", "stacks": {"worker": "..."}}

    found = stalls(describe, busy_until_s=25)
    assert [(event.elapsed_s, event.data["seconds"]) for event in found] == [
        (pytest.approx(55), pytest.approx(30)), (pytest.approx(85), pytest.approx(60))]
    assert found[0].data["waiting"] == "rain"
    assert found[0].data["stacks"].keys() == {"worker", "engine"}


def test_a_report_that_cannot_be_made_is_a_report_too():
    async def describe():
        raise OSError("no stacks")

    found = stalls(describe, busy_until_s=1)
    assert "no stacks" in found[0].data["waiting"]
    assert found[0].data["stacks"].keys() == {"engine"}


def test_an_engine_stuck_in_one_call_is_reported_from_outside(capsys):
    entries = []

    class Log:
        def warning(self, event, **facts):
            entries.append((event, facts))

    async def main():
        with turning(2.0, Log()):
            await asyncio.sleep(0.6)
            assert not entries
            threading.Event().wait(6.5)

    asyncio.run(main())
    event, facts = entries[0]
    assert event == "stuck"
    assert "threading.Event().wait(6.5)" in facts["stacks"]["engine"]
    assert f"stalled: {facts['message']}" in capsys.readouterr().err
    assert len(entries) <= 4
