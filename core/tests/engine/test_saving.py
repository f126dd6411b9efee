"""A checkpoint of any size gets to the disk while the engine's event loop turns."""

import asyncio
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_bench.engine import RealClock
from grpo_bench.engine.checkpoints import CheckpointStore
from grpo_bench.engine.clock import run_real
from grpo_bench.engine.saving import Saver
from grpo_bench.observers.durable import sync


class Writer:
    """A trainer whose checkpoint is one file."""

    async def save(self, folder, what):
        (folder / "weights").write_bytes(b"weights")


def saver(store, events):
    limits = SimpleNamespace(checkpoint_s=60.0)
    parts: Any = SimpleNamespace(trainer=Writer(), attributed=lambda role, step: nullcontext(),
                                 plan=SimpleNamespace(profile=SimpleNamespace(limits=limits)))
    recorder: Any = SimpleNamespace(step=3, emit=lambda kind, **data: events.append((kind, data)))
    return Saver(parts, store, recorder, SimpleNamespace(sync=lambda: None), RealClock(), "r")


@pytest.fixture
def syncs(monkeypatch):
    """Whether the loop turned while each path was synced, by the path's name."""
    found = {}

    def waiting(path):
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        found[path.name] = turned.wait(0 if threading.current_thread() is threading.main_thread() else 10)
        sync(path)

    loop = asyncio.new_event_loop()
    monkeypatch.setattr("grpo_bench.engine.checkpoints.sync", waiting)
    monkeypatch.setattr("asyncio.new_event_loop", lambda: loop)
    return found


def test_what_the_trainer_wrote_is_synced_and_sealed_beside_the_loop(tmp_path, syncs):
    events, states = [], []

    def state(folder):
        states.append(sorted(path.name for path in folder.iterdir()))
        return {"step": 3}

    (tmp_path / "checkpoints").mkdir()
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    run_real(lambda clock: saver(store, events).save("step-00003", "full", state))
    assert syncs["weights"]
    assert syncs["trainer"]
    assert states == [["weights"]]
    assert [(kind, data["folder"], data["bytes"]) for kind, data in events] == [("checkpoint", "step-00003", 7)]
    written = [path.name for path in (tmp_path / "checkpoints" / "step-00003").iterdir()]
    assert sorted(written) == ["state.json", "trainer"]


def test_one_of_the_same_name_goes(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    for _ in range(2):
        run_real(lambda clock: saver(store, []).save("final", "weights"))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["final"]
