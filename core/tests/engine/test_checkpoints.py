"""Checkpoints are whole or absent."""

import numpy as np
import pytest

from grpo_bench.contract import Event, Kind, RunFolderError
from grpo_bench.engine.checkpoints import CheckpointStore

HISTORY = [Event(0, "", 0.0, Kind.RUN_STARTED, None, {"run": "r"}), Event(1, "", 0.0, Kind.CHECKPOINT, 6, {})]


def write(store, step, **state):
    folder = store.begin(f"step-{step:05d}")
    (folder / "weights").write_bytes(bytes([step]))
    whole = {"run": "r", "step": step, "seq": 1, "met": False, "buffer": {}, "probes": [], "probe_first": None}
    return store.commit(folder, {**whole, **state})


def test_the_newest_checkpoint_is_restored_and_old_ones_are_pruned(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest(HISTORY) is None
    for step in (2, 4, 6):
        write(store, step, probes=[np.arange(3, dtype=np.int32)])
        store.prune()
    restored = store.latest(HISTORY)
    assert restored is not None
    assert (restored.step, restored.recorded) == (6, True)
    assert (restored.folder / "weights").read_bytes() == b"\x06"
    np.testing.assert_array_equal(restored.state["probes"][0], [0, 1, 2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00004", "step-00006"]


def test_a_checkpoint_that_was_being_written_does_not_count(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    half = store.begin("step-00002")
    (half / "weights").write_bytes(b"half")
    restored = store.latest(HISTORY)
    assert restored is not None
    assert restored.step == 1
    again = store.begin("step-00002")
    assert list(again.iterdir()) == []


def test_a_damaged_state_is_named(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    (write(store, 1) / "state.json").write_text("{")
    with pytest.raises(RunFolderError, match="step-00001"):
        store.latest(HISTORY)


def test_one_whose_event_the_journal_lacks_says_so(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    restored = store.latest(HISTORY[:1])
    assert restored is not None
    assert not restored.recorded


@pytest.mark.parametrize(("state", "says"), [
    ({"run": "other"}, "belongs to run other"), ({"seq": 3}, "knows 3 events"),
])
def test_one_that_does_not_go_with_the_journal_is_named(tmp_path, state, says):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1, **state)
    with pytest.raises(RunFolderError, match=says):
        store.latest(HISTORY)


def test_a_checkpoint_written_again_replaces_the_other(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    (write(store, 1) / "weights").rename(tmp_path / "step-00001" / "moved")
    assert sorted(path.name for path in write(store, 1).iterdir()) == ["state.json", "weights"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00001"]


def test_what_was_being_removed_goes_when_the_next_is_begun(tmp_path):
    (tmp_path / ".removing-step-00001").mkdir()
    CheckpointStore(tmp_path, keep=2).begin("step-00002")
    assert [path.name for path in tmp_path.iterdir()] == [".writing-step-00002"]
