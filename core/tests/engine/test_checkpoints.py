"""Checkpoints are whole or absent."""

import numpy as np
import pytest

from grpo_bench.contract import Event, Kind, RunFolderError
from grpo_bench.engine.checkpoints import CheckpointStore
from grpo_bench.steps.seals import WHOLE, broken, seals

HISTORY = [Event(0, "", 0.0, Kind.RUN_STARTED, None, {"run": "r"}), Event(1, "", 0.0, Kind.CHECKPOINT, 6, {})]


def write(store, step, **state):
    folder = store.begin(f"step-{step:05d}")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "weights").write_bytes(bytes([step]))
    whole = {"run": "r", "step": step, "seq": 1, "met": False, "buffer": {}, "probes": [], "probe_first": None}
    return store.commit(folder, store.seal(folder), {**whole, **state})


def test_the_newest_checkpoint_is_restored_and_old_ones_are_pruned(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest(HISTORY) is None
    for step in (2, 4, 6):
        write(store, step, probes=[np.arange(3, dtype=np.int32)])
        store.prune()
    restored = store.latest(HISTORY)
    assert restored is not None
    assert (restored.step, restored.recorded) == (6, True)
    assert (restored.folder / "trainer" / "weights").read_bytes() == b"\x06"
    np.testing.assert_array_equal(restored.state["probes"][0], [0, 1, 2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00004", "step-00006"]


def test_a_checkpoint_that_was_being_written_does_not_count(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    half = store.begin("step-00002")
    (half / "trainer").mkdir()
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


def changed(file):
    file.write_bytes(b"\x02")


def large(file):
    """Of one above the limit the size counts too."""
    with file.open("r+b") as opened:
        opened.truncate(WHOLE + 1)


@pytest.mark.parametrize(("damage", "says"), [
    (changed, "weights is not what was written"), (large, "weights is not what was written"),
    (lambda file: file.unlink(), "weights is missing"),
    (lambda file: file.with_name("more").touch(), "more does not belong to it"),
])
def test_what_the_trainer_saved_is_looked_at_before_it_is_used(tmp_path, damage, says):
    store = CheckpointStore(tmp_path, keep=2)
    damage(write(store, 1) / "trainer" / "weights")
    with pytest.raises(RunFolderError, match=f"step-00001/trainer is damaged: {says}"):
        store.latest(HISTORY)


def test_samples_of_a_large_file_reach_its_end(tmp_path):
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(WHOLE + 2)
    before = seals(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(WHOLE + 1)
        opened.write(b"1")
    assert broken(tmp_path, before) == "large is not what was written"


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
    (write(store, 1) / "trainer").rename(tmp_path / "step-00001" / "moved")
    assert sorted(path.name for path in write(store, 1).iterdir()) == ["state.json", "trainer"]
    store.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00001"]


def test_what_was_being_removed_goes_when_the_next_is_begun(tmp_path):
    (tmp_path / ".removing-step-00001").mkdir()
    CheckpointStore(tmp_path, keep=2).begin("step-00002")
    assert [path.name for path in tmp_path.iterdir()] == [".writing-step-00002"]
