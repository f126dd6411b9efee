"""Weights through the ``safetensors`` transport."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from grpo_bench.contract import DeadlineExceeded, RefitError, TensorSpec, Transfer
from grpo_bench.steps.transport import receive_tensors, send_tensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big": np.linspace(-1, 1, 1000, dtype=np.float32),
    "none": np.zeros((0, 4), np.float32),
    "b": np.array([7.5], np.float32),
}


def transfer(folder, chunk_bytes, deadline_s=5.0):
    specs = tuple(TensorSpec(name, array.shape, "float32") for name, array in ARRAYS.items())
    return Transfer(3, "safetensors", str(folder), specs, chunk_bytes, deadline_s)


async def collect(moving):
    return {spec.name: np.frombuffer(data, np.float32).reshape(spec.shape)
            async for spec, data in receive_tensors(moving)}


@pytest.mark.parametrize("chunk_bytes", [1, 30, 512, 1 << 20])
def test_every_receiver_gets_every_tensor_while_the_sender_sends(tmp_path, chunk_bytes):
    moving = transfer(tmp_path, max(chunk_bytes, 4))

    async def both():
        sending = send_tensors(moving, lambda spec: ARRAYS[spec.name])
        return await asyncio.gather(collect(moving), collect(moving), sending)

    first, second, sent = asyncio.run(both())
    assert sent == sum(array.nbytes for array in ARRAYS.values())
    for got in (first, second):
        assert list(got) == list(ARRAYS)
        assert all(np.array_equal(got[name], array) for name, array in ARRAYS.items())


def test_no_chunk_holds_more_than_it_may(tmp_path):
    asyncio.run(send_tensors(transfer(tmp_path, 512), lambda spec: ARRAYS[spec.name]))
    files = sorted(tmp_path.glob("chunk-*.safetensors"))
    assert len(files) > 5
    for file in files:
        content = file.read_bytes()
        assert len(content) - 8 - int.from_bytes(content[:8], "little") <= 512


def test_changed_bytes_are_refused(tmp_path):
    moving = transfer(tmp_path, 1 << 20)
    asyncio.run(send_tensors(moving, lambda spec: ARRAYS[spec.name]))
    (file,) = tmp_path.glob("chunk-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RefitError, match="sha256"):
        asyncio.run(collect(moving))


def test_another_version_in_the_folder_is_refused(tmp_path):
    asyncio.run(send_tensors(transfer(tmp_path, 1 << 20), lambda spec: ARRAYS[spec.name]))
    with pytest.raises(RefitError, match="version is 4 here but 3"):
        asyncio.run(collect(dataclasses.replace(transfer(tmp_path, 1 << 20), version=4)))


def test_a_receiver_without_a_sender_gives_up_at_the_deadline(tmp_path):
    with pytest.raises(DeadlineExceeded, match="receiving weight version 3"):
        asyncio.run(collect(transfer(tmp_path, 512, deadline_s=0.05)))


def test_data_that_does_not_match_its_shape_is_refused(tmp_path):
    with pytest.raises(RefitError, match="a has 4 bytes"):
        asyncio.run(send_tensors(transfer(tmp_path, 512), lambda spec: np.zeros(1, np.float32)))
