"""Settings of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grpo_bench.contract import Settings, Site

Steps = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class TorchTrainerConfig(Settings):
    workers: Annotated[int, Field(ge=0, le=256, strict=True)] = 0
    """Ranks, each a process with its own copy of the weights; 0: as many as suits the machine. Results are the same bit
    for bit with the same number."""
    learning_rate: Rate = 1e-3
    """Of Adam, after the warm-up."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two averages."""
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-8
    """Added to Adam's denominator."""
    weight_decay: Rate = 0.0
    """Decoupled, on matrices only."""
    warmup_steps: Steps = 0
    """Steps over which the learning rate rises linearly to its value."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up."""
    decay_steps: Steps = 0
    """Steps from start until the fall ends; 0 with the constant schedule only."""
    min_learning_rate: Rate = 0.0
    """Where the fall ends."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0
    """Largest norm of the whole batch's gradient; None: unbounded."""
    batch_tokens: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 1024
    """Tokens computed at once; small enough for the processor's cache is fastest."""
    share_prefixes: bool = True
    """Compute what rows of a batch have in common at their beginning once. Same result up to rounding."""

    reuse_forward: bool = True
    """Keep what the log-probability pass computed for the update that follows it, which then need not run forward
    again. Same result bit for bit; costs memory, some 40 kB a token for a policy of a million parameters."""

    @model_validator(mode="after")
    def _fits(self) -> TorchTrainerConfig:
        if (self.schedule == "constant") != (self.decay_steps == 0):
            raise ValueError("schedule 'constant' goes with decay_steps = 0, the others with decay_steps > 0")
        if self.schedule == "constant" and self.min_learning_rate not in (0.0, self.learning_rate):
            raise ValueError("min_learning_rate does nothing with schedule 'constant', which never falls")
        if self.decay_steps and self.decay_steps <= self.warmup_steps:
            raise ValueError("decay_steps counts from the start and must exceed warmup_steps")
        return self


def describe(config: TorchTrainerConfig, site: Site) -> Mapping[str, Any]:
    """What is computed, in MLLOG's words. Ranks are data parallel; a micro-batch is a pack of whole rows."""
    constant = config.schedule == "constant"
    return {
        "opt_name": "adamw", "opt_base_learning_rate": config.learning_rate,
        "opt_end_learning_rate": config.learning_rate if constant else config.min_learning_rate,
        "opt_adamw_beta_1": config.betas[0], "opt_adamw_beta_2": config.betas[1], "opt_adamw_epsilon": config.eps,
        "opt_adamw_weight_decay": config.weight_decay, "opt_gradient_clip_norm": config.clip_norm,
        "opt_learning_rate_warmup_steps": config.warmup_steps, "opt_learning_rate_decay_schedule": config.schedule,
        "micro_batch_size": 1, "tensor_parallelism": 1, "pipeline_parallelism": 1, "context_parallelism": 1,
        "expert_parallelism": 1, "lowest_numerical_precision_in_linear": "fp32",
        "lowest_numerical_precision_in_attn": "fp32", "lowest_numerical_precision_in_comm": "fp32",
    }
