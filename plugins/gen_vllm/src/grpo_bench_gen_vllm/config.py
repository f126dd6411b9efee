"""Settings of the generator.

A key stands here where the plugin itself has to know it: layout, batch, cache, graphs. Everything else that vLLM can be
told goes under its own name into ``engine``. Names that both could set are refused there, so each thing is said once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from grpo_bench.contract import Settings

from .arguments import refuse_owned


class VllmGeneratorConfig(Settings):
    workers: Annotated[int, Field(ge=0, le=4096, strict=True)] = 0
    """Engines (data-parallel replicas), each with all weights; 0: as many as suits the machine."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Processes that hold one engine's weights between them."""
    expert_parallel: bool = False
    """Each of an engine's processes holds whole experts, 1 / tensor_parallel of them, instead of a slice of all."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of weights and arithmetic. float32 agrees with a trainer in float32; GPUs run bfloat16."""
    sequences: Annotated[int, Field(ge=1, le=65_536, strict=True)] | None = None
    """Sequences that one engine samples at once; more requests wait. None: as vLLM thinks fit for the device and
    performance_mode."""
    batched_tokens: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 2048
    """Tokens of one engine step at most; longer prompts are spread over steps (chunked prefill)."""
    prefix_caching: bool = True
    """Compute a prompt's beginning once for its group and for the turns that follow. Reset by every refit."""
    kv_cache_dtype: str = "auto"
    """Of the key-value cache, in vLLM's words; auto: as ``dtype``."""
    kv_cache_gib: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] | None = None
    """Memory of the key-value cache of each process; None: on CUDA what gpu_memory_utilization leaves beside the
    weights, on CPU 1 GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.9
    """Share of a device's memory that the engine may take, weights included; on CPU of no effect."""
    cuda_graphs: Literal["off", "piecewise", "full", "full_decode_only", "full_and_piecewise"] = "off"
    """off: nothing is compiled or captured. The others compile the model (VLLM_COMPILE) and capture CUDA graphs so."""
    moe_backend: str = "auto"
    """Kernels for experts, in vLLM's words (``triton``, ``flashinfer_cutlass``...)."""
    performance_mode: Literal["balanced", "interactivity", "throughput"] = "balanced"
    """What vLLM tunes its defaults for; throughput doubles its own choice of sequences."""
    engine: dict[str, Any] = {}
    """Further arguments of vLLM's engine by vLLM's own names, such as ``async_scheduling`` or ``block_size``."""

    @field_validator("engine")
    @classmethod
    def _not_ours(cls, engine: dict[str, Any]) -> dict[str, Any]:
        refuse_owned(engine)
        return engine

    @model_validator(mode="after")
    def _fits(self) -> VllmGeneratorConfig:
        if self.sequences is not None and self.sequences > self.batched_tokens:
            raise ValueError(f"batched_tokens = {self.batched_tokens} is below sequences = {self.sequences}, each of "
                             "which needs a token in every step")
        if self.expert_parallel and self.tensor_parallel == 1:
            raise ValueError("expert_parallel divides experts over the tensor_parallel processes, of which there is 1")
        return self
