# pyright: reportPrivateImportUsage=false
"""A vLLM generator as a run has it: on the local fabric, with a client, and known weights handed over as by a trainer.

The policy is that of the repair benchmark, small and with experts and a tied output matrix; what its log-probabilities
should be says :mod:`grpo_bench_model_qwen3`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from grpo_bench.contract import (
    LimitSettings, Placement, PluginContext, PolicyFacts, Purpose, Sample, Sampling, TensorSpec, Transfer,
)
from grpo_bench.fabric import LocalFabric
from grpo_bench.steps.transport import send_tensors
from grpo_bench_gen_vllm import VllmGeneratorConfig
from grpo_bench_gen_vllm.client import make as make_client
from grpo_bench_gen_vllm.controller import make
from grpo_bench_model_qwen3 import Qwen3, hf_views, load, log_probabilities, pack

BASE = Path(str(files("grpo_bench_policy_minirepair") / "base"))
BOUND = 1e-4
TEMPERATURE = 0.7
CONTEXT = 500
SAMPLING = Sampling(purpose=Purpose.TRAIN, temperature=TEMPERATURE, top_p=1.0, top_k=-1, min_p=0.0,
                    repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(),
                    max_tokens=24, max_context=CONTEXT, seed=5)
DEADLINE_S = 120.0

T = TypeVar("T")


class Running:
    """A started generator; ``play`` runs a coroutine on its event loop."""

    def __init__(self, folder: Path, python: str, workers: int, tensor_parallel: int = 1,
                 nodes: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._runner = asyncio.Runner()
        self._transfers = 0
        self._requests = 0
        clock: Any = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), now_utc=lambda: "now")
        log = logging.getLogger("test")
        self.fabric = LocalFabric(folder, clock, log, grace_s=10.0)
        self.generator = make(PluginContext(
            config=VllmGeneratorConfig(workers=workers, tensor_parallel=tensor_parallel, kv_cache_gib=0.1),
            fabric=self.fabric, placement=Placement(nodes=nodes), run_folder=folder,
            policy=PolicyFacts(BASE, CONTEXT, 768), seed=3, deterministic=False, clock=clock, logger=log,
            interpreter=python,
            shared={"sampling": {Purpose.TRAIN: SAMPLING}, "limits": LimitSettings(), "transport": "safetensors"}))
        self.client: Any = None

    def __enter__(self) -> Running:
        try:
            self.play(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.play(self._close())
        finally:
            self._runner.close()

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def ask(self, ids: np.ndarray, stream: str = "r/0", *, sampling: Sampling = SAMPLING, affinity: str = "g",
                  request: str | None = None) -> Sample:
        self._requests += 1
        return await self.client.generate(request or f"request-{self._requests}", ids, sampling, stream=stream,
                                          affinity=affinity, deadline_s=DEADLINE_S)

    async def ask_all(self, prompts: Sequence[np.ndarray], name: str = "r", **how: Any) -> list[Sample]:
        return await asyncio.gather(*(self.ask(ids, f"{name}{index}/0", **how) for index, ids in enumerate(prompts)))

    def transfer(self, model: Qwen3, version: int, *, leave_out: Sequence[str] = (), transport: str = "safetensors",
                 chunk_bytes: int = 1 << 16) -> Transfer:
        """A transfer of the model's weights in chunks that are smaller than some of them."""
        self._transfers += 1
        where = self.folder / f"transfer-{self._transfers}"
        where.mkdir()
        specs = tuple(TensorSpec(name, tuple(view.shape), "float32") for name, view in hf_views(model).items()
                      if name not in leave_out)
        return Transfer(version, transport, str(where), specs, chunk_bytes, DEADLINE_S,
                        len(self.generator.addresses()))

    async def hand_over(self, model: Qwen3, version: int, **how: Any) -> None:
        """What a refit moves, without pause and resume."""
        transfer = self.transfer(model, version, **how)
        views = hf_views(model)
        await both(self.generator.receive(transfer),
                   send_tensors(transfer, lambda spec: views[spec.name].detach().contiguous().numpy()))

    async def refit(self, model: Qwen3, version: int, mode: Any = "drain") -> None:
        await self.generator.pause(mode)
        await self.hand_over(model, version)
        await self.generator.resume()

    async def _start(self) -> None:
        await self.generator.start()
        self.client = make_client([await self.fabric.connect(address) for address in self.generator.addresses()])

    async def _close(self) -> None:
        await self.generator.close()
        await self.fabric.close()


async def both(*work: Coroutine[Any, Any, Any]) -> None:
    """Both sides of a transfer; the one that fails ends the other."""
    tasks = [asyncio.ensure_future(side) for side in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def broadcast(transfer: Transfer, model: Qwen3, processes: int = 1) -> None:
    """Send the model's weights as the transport ``broadcast`` wants it, to engines of so many processes; blocks until
    they are sent."""
    limit = timedelta(seconds=transfer.deadline_s)
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=limit)
    hidden = Path(transfer.rendezvous) / ".store"
    hidden.write_text(f"127.0.0.1:{store.port}")
    hidden.rename(hidden.with_name("store"))
    world = 1 + transfer.receivers * processes
    for rank in range(1, world):
        assert store.get(f"members/{rank}") == str(world).encode()
    group: Any = dist.ProcessGroupGloo(dist.PrefixStore("group", store), 0, world, limit)
    views, root = hf_views(model), dist.BroadcastOptions()
    root.rootRank, root.rootTensor = 0, 0
    for spec in transfer.tensors:
        group.broadcast([views[spec.name].detach().contiguous()], root).wait()


def policy(seed: int = 0, changes: str = "") -> Qwen3:
    """The policy; with a ``seed``, all matrices whose name holds ``changes`` moved by a third of their spread."""
    model = load(BASE)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, view in hf_views(model).items():
            if seed and changes in name and view.ndim > 1:
                view.add_(torch.randn(view.shape, generator=random) * float(view.std()) * 0.3)
    return model


def expected(model: Qwen3, ids: np.ndarray) -> np.ndarray:
    """Log-probability of each token but the first [T - 1] at the training temperature."""
    ids = np.asarray(ids, np.int32)
    packed = pack(ids, np.array([0, len(ids)]))
    return log_probabilities(model, packed, ids, np.arange(1, len(ids)), TEMPERATURE).detach().numpy()


def apart(model: Qwen3, prompt: np.ndarray, sample: Sample, part: slice = slice(None)) -> float:
    """How far a part of a sample's log-probabilities is from the model's."""
    values = expected(model, np.concatenate([prompt, sample.ids]))[len(prompt) - 1:]
    return float(np.abs(values - sample.log_probabilities)[part].max(initial=0.0))


def prompts(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    """Random token ids."""
    random = np.random.default_rng(seed)
    return [random.integers(10, 700, length).astype(np.int32) for length in lengths]
