"""Checkpoints are whole or absent."""

import numpy as np
import pytest

from grpo_bench.contract import RunFolderError
from grpo_bench.engine.checkpoints import CheckpointStore


def write(store, step, **state):
    folder = store.begin(f"step-{step:05d}")
    (folder / "weights").write_bytes(bytes([step]))
    return store.commit(folder, {"step": step, **state})


def test_the_newest_checkpoint_is_restored_and_old_ones_are_pruned(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest() is None
    for step in (2, 4, 6):
        write(store, step, probes=[np.arange(3, dtype=np.int32)])
        store.prune()
    restored = store.latest()
    assert restored is not None
    assert restored.step == 6
    assert (restored.folder / "weights").read_bytes() == b"\x06"
    np.testing.assert_array_equal(restored.state["probes"][0], [0, 1, 2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00004", "step-00006"]


def test_a_checkpoint_that_was_being_written_does_not_count(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    half = store.begin("step-00002")
    (half / "weights").write_bytes(b"half")
    restored = store.latest()
    assert restored is not None
    assert restored.step == 1
    again = store.begin("step-00002")
    assert list(again.iterdir()) == []


def test_a_damaged_state_is_named(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    (write(store, 1) / "state.json").write_text("{")
    with pytest.raises(RunFolderError, match="step-00001"):
        store.latest()
