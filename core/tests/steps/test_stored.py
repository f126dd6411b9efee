"""Tensors of a folder, byte for byte."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from grpo_bench.contract import PluginError, TensorSpec
from grpo_bench.steps.stored import StoredTensors, tensor_names


def test_all_tensors_of_all_files_are_found_and_read(tmp_path):
    first, second = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"y": np.array([7], np.float64)}
    save_file(first, tmp_path / "model-00001.safetensors", metadata={"format": "pt"})
    save_file(second, tmp_path / "model-00002.safetensors")
    stored = StoredTensors(tmp_path)
    assert stored.specs == (TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (1,), "float64"))
    assert stored.read(stored.specs[0]) == first["x"].tobytes()
    assert stored.read(stored.specs[1]) == second["y"].tobytes()


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"\x05" + bytes(7) + b"nothi", b"\x02" + bytes(7) + b"[]"])
def test_a_file_of_another_form_is_named(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(PluginError, match=r"model\.safetensors holds no tensors"):
        StoredTensors(tmp_path)


def test_numbers_of_a_kind_that_no_transfer_carries_are_named(tmp_path):
    save_file({"x": np.arange(3, dtype=np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(PluginError, match="dtypes F64, F32"):
        StoredTensors(tmp_path)
    assert tensor_names(tmp_path) == {"x"}
