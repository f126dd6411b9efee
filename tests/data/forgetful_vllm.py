"""vLLM, but the weights of version 2 are taken and thrown away: the engine keeps those of version 1."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpo_bench_gen_vllm
from grpo_bench_gen_vllm.controller import VllmGenerator

from grpo_bench.steps.transport import receive_tensors


class ForgetfulGenerator(VllmGenerator):
    async def receive(self, transfer: Any) -> None:
        if transfer.version != 2:
            return await super().receive(transfer)
        await asyncio.gather(*(_taken(transfer, engine) for engine in range(len(self.addresses()))))


async def _taken(transfer: Any, engine: int) -> None:
    async for _ in receive_tensors(transfer, engine):
        pass


def make(context: Any) -> ForgetfulGenerator:
    return ForgetfulGenerator(context)


generator = replace(grpo_bench_gen_vllm.plugin, name="forgetful", factory=f"{__name__}:make")
