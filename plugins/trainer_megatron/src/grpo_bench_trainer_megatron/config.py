"""Settings of the trainer.

The typed keys are what a run is usually described by; the tables ``model``, ``optimizer`` and ``ddp`` take any further
field of Megatron's own configuration by Megatron's own name. ``"auto"``, where a key has it, leaves the choice to what
the environment has.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from grpo_bench.contract import Settings

Size = Annotated[int, Field(ge=1, le=65_536, strict=True)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Switch = bool | Literal["auto"]
Precision = Literal["float32", "bfloat16"]


class MegatronTrainerConfig(Settings):
    workers: Annotated[int, Field(ge=0, le=65_536, strict=True)] = 0
    """Ranks, each a process; 0: as many as the layout below takes, one data-parallel replica. Becomes that number."""
    tensor_parallel: Size = 1
    """Ranks over which every layer's matrices are cut."""
    pipeline_parallel: Size = 1
    """Stages over which the layers are cut."""
    virtual_pipeline: Size = 1
    """Pieces of the model that each stage holds, interleaved."""
    context_parallel: Size = 1
    """Ranks over which each sequence is cut. Needs Transformer Engine."""
    expert_parallel: Size = 1
    """Ranks over which the experts are spread."""
    expert_tensor_parallel: Size = 1
    """Ranks over which each expert's matrices are cut."""
    sequence_parallel: Switch = "auto"
    """Cut what lies between the matrices along the sequence; auto: where tensor_parallel is above 1."""

    precision: Precision = "float32"
    """Of weights and activations. The optimizer's copy of the weights and the gradients' sums are float32."""
    router_precision: Precision = "float32"
    """Of the experts' routing."""
    freeze_router: bool = True
    """Keep the routers as they are in the checkpoint."""

    transformer_engine: Switch = "auto"
    """Build layers of Transformer Engine rather than of plain torch."""
    attention: Literal["auto", "flash", "fused", "unfused"] = "auto"
    """Which attention Transformer Engine uses."""
    dispatcher: Literal["alltoall", "allgather", "flex"] = "alltoall"
    """How tokens reach their experts' ranks."""
    flex_backend: Literal["hybridep", "deepep"] = "hybridep"
    """Who moves tokens where dispatcher is flex."""
    flex_sms: Annotated[int, Field(ge=1, le=1024, strict=True)] | Literal["auto"] = "auto"
    """Multiprocessors that the flex dispatcher takes; auto: its own choice."""
    grouped_gemm: Switch = "auto"
    """Compute a rank's experts in one grouped product."""
    fusions: Switch = "auto"
    """Fused kernels for rotary embedding, softmax, activation, token permutation, routing and gradient sums."""
    recompute: Literal["selective", "full"] | None = None
    """Compute activations again in the backward pass; None: keep them."""
    recompute_modules: tuple[str, ...] = ()
    """What is computed again with recompute selective, by Megatron's names; empty: the attention's core."""
    recompute_layers: Size = 1
    """Layers that are computed again as one unit with recompute full."""
    deterministic: bool = False
    """Only kernels with the same result every time. On a CPU they always are."""

    packing: bool = True
    """Put rows one behind the other into one long sequence; false: pad rows to one length."""
    batch_tokens: Annotated[int, Field(ge=1, le=2**24, strict=True)] = 1024
    """Tokens computed at once; a row that is longer is computed by itself."""

    learning_rate: Rate = 1e-6
    """Of Adam, the same at every step."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two averages."""
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-8
    """Added to Adam's denominator."""
    weight_decay: Rate = 0.0
    """Decoupled, on matrices only."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0
    """Largest norm of the whole batch's gradient; None: unbounded."""
    precision_aware_optimizer: bool = False
    """Keep the optimizer's state in the dtypes that the table optimizer names. Needs Transformer Engine."""
    overlap: bool = False
    """Sum gradients and gather weights while layers compute."""

    cache: str = "auto"
    """Folder for checkpoints converted to Megatron's form; auto: grpo-bench/megatron in the user's cache."""
    collective_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 1800.0
    """Seconds after which a rank that waits for the others gives up; more than limits.refit_s."""

    model: Mapping[str, Any] = {}
    """Further fields of Megatron's model provider, such as moe_router_fusion."""
    optimizer: Mapping[str, Any] = {}
    """Further fields of Megatron's OptimizerConfig; dtypes as text, such as bfloat16."""
    ddp: Mapping[str, Any] = {}
    """Further fields of Megatron's DistributedDataParallelConfig."""

    @field_validator("cache")
    @classmethod
    def _absolute(cls, cache: str) -> str:
        if cache != "auto" and not cache.startswith(("/", "~")):
            raise ValueError("should be an absolute path")
        return cache

    @model_validator(mode="after")
    def _fits(self) -> MegatronTrainerConfig:
        if self.flex_sms != "auto" and self.dispatcher != "flex":
            raise ValueError(f"flex_sms does nothing with dispatcher {self.dispatcher!r}")
        if self.recompute_modules and self.recompute != "selective":
            raise ValueError("recompute_modules goes with recompute = 'selective'")
        if self.context_parallel > 1 and not self.packing:
            raise ValueError("context_parallel above 1 goes with packing = true")
        if self.virtual_pipeline > 1 and self.pipeline_parallel == 1:
            raise ValueError("virtual_pipeline goes with pipeline_parallel above 1")
        object.__setattr__(self, "workers", self.workers or self.model_ranks)
        return self

    @property
    def model_ranks(self) -> int:
        """Ranks that one replica of the model takes."""
        dense = self.tensor_parallel * self.context_parallel
        experts = self.expert_parallel * self.expert_tensor_parallel
        return self.pipeline_parallel * lcm(dense, experts)

    @property
    def sequence_parallel_on(self) -> bool:
        return self.tensor_parallel > 1 if self.sequence_parallel == "auto" else self.sequence_parallel
