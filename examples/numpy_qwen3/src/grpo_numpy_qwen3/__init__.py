"""The descriptor of the generator ``numpy_qwen3`` and its settings. It imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grpo_bench.contract import Capabilities, Plugin, Role, Settings


class Config(Settings):
    workers: Annotated[int, Field(ge=0, strict=True)] = 0
    """Engines, each with its own copy of the weights; 0: as many as suits the machine."""


plugin = Plugin(
    name="numpy_qwen3",
    role=Role.GENERATOR,
    summary="samples from Qwen3 policies in numpy",
    config=Config,
    factory="grpo_numpy_qwen3.generator:make",
    client="grpo_numpy_qwen3.generator:make_client",
    capabilities=Capabilities(receives=frozenset({"safetensors"}), sampling=frozenset({"temperature"}),
                              refit=frozenset({"drain", "keep"}), computes="policy", deterministic=True),
)

__all__ = ["Config", "plugin"]
