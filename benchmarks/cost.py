"""What being resumable costs: the journal and the checkpoints of a short laptop run, as shares of its steps.

Takes a minute, so it runs only where it is named: ``make bench ARGS=cost``. The run's own events are written again,
with and without waiting for the disk after each; the run itself waits at few of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from grpo_bench.contract import Event, Kind
from grpo_bench.observers import Journal
from grpo_bench.observers.journal import read_events

from . import Result, seconds
from ._short import STEPS, short_run

ON_REQUEST = True
_SYNCED = 200
"""Events written with a wait after each; more would only take longer."""


def run() -> Iterator[Result]:
    with short_run() as (folder, _):
        events = list(read_events(folder))
    step = median(event.data["seconds"] for event in events if event.kind == Kind.STEP)
    saves = [event.data for event in events if event.kind == Kind.CHECKPOINT and event.data["what"] == "full"]
    with tempfile.TemporaryDirectory() as name:
        plain = seconds(lambda: _write(Path(name), events, sync=False)) / len(events)
        synced = seconds(lambda: _write(Path(name), events[:_SYNCED], sync=True)) / len(events[:_SYNCED])
    yield Result("an event, kept by the system", plain, "a step", step)
    yield Result("an event, on the disk", synced, "one kept by the system", plain)
    yield Result(f"the {len(events) // STEPS} events of a step", plain * len(events) / STEPS, "a step", step)
    size = median(save["bytes"] for save in saves)
    yield Result(f"a checkpoint of {size / 1e6:.1f} MB", median(save["seconds"] for save in saves), "a step", step)


def _write(folder: Path, events: Sequence[Event], *, sync: bool) -> None:
    (folder / "events.jsonl").unlink(missing_ok=True)
    journal = Journal(folder)
    for event in events:
        journal.write(event)
        if sync:
            journal.sync()
    journal.close()
