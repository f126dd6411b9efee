"""Weights through the ``safetensors`` transport."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from grpo_bench.contract import DeadlineExceeded, RefitError, TensorSpec, Transfer
from grpo_bench.steps.transport import WINDOW, receive_chunks, receive_tensors, send_tensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big": np.linspace(-1, 1, 1000, dtype=np.float32),
    "none": np.zeros((0, 4), np.float32),
    "b": np.array([7.5], np.float32),
}


def transfer(folder, chunk_bytes, deadline_s=30.0, receivers=1):
    specs = tuple(TensorSpec(name, array.shape, "float32") for name, array in ARRAYS.items())
    return Transfer(3, "safetensors", str(folder), specs, chunk_bytes, deadline_s, receivers)


async def collect(moving, receiver=0):
    return {spec.name: np.frombuffer(data, np.float32).reshape(spec.shape)
            async for spec, data in receive_tensors(moving, receiver)}


def send(moving):
    return send_tensors(moving, lambda spec: ARRAYS[spec.name])


def chunks(folder):
    return sorted(folder.glob("chunk-*.safetensors"))


@pytest.mark.parametrize("chunk_bytes", [40, 300, 1 << 20])
def test_every_receiver_gets_every_tensor_while_the_sender_sends(tmp_path, chunk_bytes):
    moving = transfer(tmp_path, chunk_bytes, receivers=2)

    async def both():
        return await asyncio.gather(collect(moving, 0), collect(moving, 1), send(moving))

    first, second, sent = asyncio.run(both())
    assert sent == sum(array.nbytes for array in ARRAYS.values())
    for got in (first, second):
        assert list(got) == list(ARRAYS)
        assert all(np.array_equal(got[name], array) for name, array in ARRAYS.items())


def test_no_chunk_holds_more_than_it_may_and_never_are_there_more_than_two(tmp_path):
    moving = transfer(tmp_path, 512, receivers=2)
    most, names = 0, set()

    async def slow(receiver):
        nonlocal most
        async for path, pieces in receive_chunks(moving, receiver):
            most = max(most, len(chunks(tmp_path)))
            names.add(path.name)
            stored = load_file(path)
            assert sum(stored[piece.key].nbytes for piece in pieces) <= 512
            await asyncio.sleep(0.005 * receiver)
            assert path.exists()

    async def both():
        await asyncio.gather(slow(0), slow(1), send(moving))

    asyncio.run(both())
    assert len(names) > 5
    assert most == WINDOW
    assert len(chunks(tmp_path)) <= WINDOW


def test_pieces_put_together_are_the_tensors(tmp_path):
    moving, got = transfer(tmp_path, 512), dict.fromkeys(ARRAYS, b"")

    async def take():
        async for path, pieces in receive_chunks(moving, 0):
            stored = load_file(path)
            for piece in pieces:
                assert len(got[piece.spec.name]) == piece.start
                got[piece.spec.name] += stored[piece.key].tobytes()
                assert piece.last == (len(got[piece.spec.name]) == ARRAYS[piece.spec.name].nbytes)
                assert not piece.whole or stored[piece.key].shape == piece.spec.shape

    async def both():
        await asyncio.gather(take(), send(moving))

    asyncio.run(both())
    assert got == {name: array.tobytes() for name, array in ARRAYS.items()}


def test_the_sender_goes_on_only_when_all_have_taken_a_chunk(tmp_path):
    moving = transfer(tmp_path, 512, deadline_s=0.3, receivers=2)

    async def one_of_two():
        return await asyncio.gather(send(moving), collect(moving, 0), return_exceptions=True)

    sending, receiving = asyncio.run(one_of_two())
    assert isinstance(sending, DeadlineExceeded)
    assert "sending weight version 3 took longer than 0.3 s: engine 1 has not taken chunk-00000" in str(sending)
    assert isinstance(receiving, DeadlineExceeded)
    assert len(chunks(tmp_path)) == WINDOW


def test_a_receiver_that_fails_on_a_chunk_has_not_taken_it(tmp_path):
    moving = transfer(tmp_path, 512)

    async def broken():
        async for _ in receive_chunks(moving, 0):
            raise MemoryError

    async def both():
        return await asyncio.gather(send(dataclasses.replace(moving, deadline_s=0.1)), broken(), return_exceptions=True)

    sending, _ = asyncio.run(both())
    assert "engine 0 has not taken chunk-00000" in str(sending)


def test_two_receivers_of_one_number_are_an_error(tmp_path):
    moving = transfer(tmp_path, 512, deadline_s=1.0, receivers=2)

    async def both():
        return await asyncio.gather(collect(moving, 0), collect(moving, 0), send(moving), return_exceptions=True)

    first, second, _ = asyncio.run(both())
    assert "chunk-00000.safetensors was taken by engine 0 before" in f"{first!s}{second!s}"


@pytest.mark.parametrize(("receivers", "receiver", "says"), [
    (0, None, "nobody receives weight version 3"), (2, 2, "receiver 2 is not one of the 2 of weight version 3"),
    (2, -1, "receiver -1 is not one of the 2")])
def test_numbers_that_cannot_be_are_refused(tmp_path, receivers, receiver, says):
    moving = transfer(tmp_path, 512, receivers=receivers)
    with pytest.raises(RefitError, match=says):
        asyncio.run(send(moving) if receiver is None else collect(moving, receiver))


def test_changed_bytes_are_refused(tmp_path):
    moving = transfer(tmp_path, 1 << 20)
    asyncio.run(send(moving))
    (file,) = chunks(tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RefitError, match="sha256"):
        asyncio.run(collect(moving))


def test_another_version_in_the_folder_is_refused(tmp_path):
    asyncio.run(send(transfer(tmp_path, 1 << 20)))
    with pytest.raises(RefitError, match="version is 4 here but 3"):
        asyncio.run(collect(dataclasses.replace(transfer(tmp_path, 1 << 20), version=4)))


def test_a_receiver_without_a_sender_gives_up_at_the_deadline(tmp_path):
    with pytest.raises(DeadlineExceeded, match="receiving weight version 3"):
        asyncio.run(collect(transfer(tmp_path, 512, deadline_s=0.05)))


def test_data_that_does_not_match_its_shape_is_refused(tmp_path):
    with pytest.raises(RefitError, match="a has 4 bytes"):
        asyncio.run(send_tensors(transfer(tmp_path, 512), lambda spec: np.zeros(1, np.float32)))


def test_a_folder_without_room_is_named(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RefitError, match=r"no room for chunk-00000\.safetensors of \d+ bytes in .*chunk_bytes"):
        asyncio.run(send(transfer(tmp_path, 512)))
