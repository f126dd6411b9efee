"""The life cycle of a change of weights, against an engine that only notes what it is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import RefitError, TensorSpec, Transfer
from grpo_bench.steps.transport import send_tensors
from grpo_bench_gen_vllm.updates import Updates

SPECS = (TensorSpec("small", (4,), "float32"), TensorSpec("large", (40, 10), "float32"))


class Engine:
    """What AsyncLLM offers for a change of weights."""

    def __init__(self, *, reset: bool = True, version: str | None = None, refuses: str = "") -> None:
        self.told: list[Any] = []
        self._reset, self._claims, self._refuses = reset, version, refuses
        self._version = "default"

    async def start_weight_update(self) -> None:
        self._note("start")

    async def update_weights(self, request: Any) -> None:
        update = dict(request.update_info)
        if "chunk" in update:
            assert _exists(update["chunk"]["path"])
            self._note([(name, start, stop) for name, _, _, start, stop in update["chunk"]["pieces"]])
        else:
            self._note(update)

    async def finish_weight_update(self, version: str) -> None:
        self._note("finish")
        self._version = version

    async def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        assert reset_running_requests
        self._note("reset")
        return self._reset

    async def get_weight_version(self) -> str:
        return self._claims or self._version

    def _note(self, what: Any) -> None:
        if what == self._refuses:
            raise RuntimeError(f"cannot {what}")
        self.told.append(what)


class Process:
    """A process that never ends."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def call(self, work: Awaitable[Any]) -> Any:
        return await work

    async def rpc(self, method: str, *given: Any) -> None:
        self.engine.told.append(method)


@pytest.fixture(autouse=True)
def requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's classes of requests, which only carry what is put into them."""
    base = SimpleNamespace(WeightTransferInitRequest=SimpleNamespace, WeightTransferUpdateRequest=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.base", base)  # type: ignore[arg-type]


def take(engine: Engine, transfer: Transfer, sender: Any = None) -> None:
    async def play() -> None:
        updates = Updates(Process(engine), 0, 2)  # type: ignore[arg-type]
        await asyncio.gather(updates.take(transfer), *([sender(transfer)] if sender else []))

    asyncio.run(play())


async def send(transfer: Transfer) -> None:
    await send_tensors(transfer, lambda spec: np.zeros(spec.shape, np.float32))


def _exists(path: str) -> bool:
    return Path(path).exists()


def transfer(folder: Path, transport: str = "safetensors", deadline_s: float = 30.0) -> Transfer:
    return Transfer(7, transport, str(folder), SPECS, 1024, deadline_s, 1)


def test_each_chunk_is_an_update_and_a_large_tensor_comes_in_ranges(tmp_path):
    engine = Engine()
    take(engine, transfer(tmp_path), send)
    assert engine.told == ["grpo_bench_abandon_update", "start", [("small", 0, 16)], [("large", 0, 1024)],
                           [("large", 1024, 1600)], "finish", "reset"]


@pytest.mark.parametrize(("engine", "message"), [
    (Engine(reset=False), "prefix cache was not reset"), (Engine(version="6"), "has weight version 6, not 7"),
])
def test_a_change_that_vllm_does_not_confirm_is_an_error(tmp_path, engine, message):
    with pytest.raises(RefitError, match=message):
        take(engine, transfer(tmp_path), send)


@pytest.mark.parametrize("step", ["start", "finish"])
def test_what_vllm_raises_ends_the_change(tmp_path, step):
    engine = Engine(refuses=step)
    with pytest.raises(RuntimeError, match=f"cannot {step}"):
        take(engine, transfer(tmp_path), send)
    assert "reset" not in engine.told


def test_the_files_of_a_folder_are_updates(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "config.json"):
        (tmp_path / name).touch()
    engine = Engine()
    take(engine, transfer(tmp_path, "hf_folder"))
    assert engine.told[2:4] == [{"file": str(tmp_path / name)} for name in ("a.safetensors", "b.safetensors")]
    with pytest.raises(RefitError, match="holds no weights"):
        take(Engine(), transfer(tmp_path / "nothing", "hf_folder"))


def test_a_broadcast_is_one_update_that_says_who_is_who(tmp_path):
    (tmp_path / "store").write_text("10.0.0.1:4242")
    engine = Engine()
    take(engine, transfer(tmp_path, "broadcast"))
    told = engine.told[2]["broadcast"]
    assert (told["store"], told["world"], told["first"]) == ("10.0.0.1:4242", 3, 1)
    assert told["tensors"] == [("small", "float32", [4]), ("large", "float32", [40, 10])]
    with pytest.raises(RefitError, match="nobody broadcasts"):
        take(Engine(), transfer(tmp_path / "nothing", "broadcast", deadline_s=0.05))


def test_an_unknown_transport_is_named(tmp_path):
    with pytest.raises(RefitError, match="unknown transport 'pigeon'"):
        take(Engine(), transfer(tmp_path, "pigeon"))
