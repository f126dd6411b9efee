"""What a rank holds: for as long as the run lasts weights, sums of gradients and Adam's state; while it trains what the
backward pass needs of the forward one; while weights are sent the tensor under way.

The first three are counted, the others estimated; :data:`ASSUMED` says how. The rank with most is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .activations import activations_of
from .config import MegatronTrainerConfig
from .model import Shape, Weight

MIB, GIB = 2**20, 2**30
ASSUMED = (
    "activations: every matrix keeps its input and its output for each token of a sequence of batch_tokens or "
    "max_context, whichever is longer, and with recompute only its layer's input",
    "experts get equally many tokens, attention keeps no scores, a stage holds one sequence more than stages follow it",
    "all tokens are judged: the last stage keeps their logits three times, once in the weights' precision",
    "refit: the largest tensor whole, and once more while it is gathered; it takes turns with activations",
    "not counted: CUDA's context, NCCL's buffers, what the allocator wastes",
)
"""What the estimate goes by, for people."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes; ``reference`` is 0 where the loss has no reference policy."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    activations: int
    refit: int

    @property
    def total(self) -> int:
        """At the worst moment: activations and refit take turns."""
        kept = self.weights + self.gradients + self.optimizer + self.reference
        return kept + max(self.activations, self.refit)

    def shown(self) -> Mapping[str, str]:
        parts = {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer,
                 "reference": self.reference, "activations": self.activations, "refit": self.refit,
                 "at most": self.total}
        return {name: size(count) for name, count in parts.items() if count or name != "reference"}


def size(count: float) -> str:
    """Bytes as text."""
    return f"{count / GIB:,.1f} GiB" if count >= 10 * GIB else f"{count / MIB:,.1f} MiB"


def memory_of(config: MegatronTrainerConfig, shape: Shape, *, reference: bool, context: int = 0) -> Memory:
    """Of the pipeline stage that holds most. ``context`` is the longest row."""
    stages = [_of_stage(config, shape, stage, reference, context) for stage in range(config.pipeline_parallel)]
    return max(stages, key=lambda stage: stage.total)


def _of_stage(config: MegatronTrainerConfig, shape: Shape, stage: int, reference: bool, context: int) -> Memory:
    stages, piece = config.pipeline_parallel, config.pipeline_parallel * config.virtual_pipeline
    layers = max(1, shape.layers // piece)
    weights = gradients = optimizer = 0.0
    for weight in shape.weights:
        if weight.layer is not None:
            here = weight.layer // layers % stages == stage
        elif weight.first:
            here = stage == 0 or (shape.tied and stage == stages - 1)
        else:
            here = stage == stages - 1
        if here:
            count = weight.count / _parts(config, weight)
            weights += count * _BYTES[config.precision]
            if not (weight.router and config.freeze_router):
                gradients += count * 4
                optimizer += count * _adam(config) / _replicas(config, weight)
    activations = activations_of(config, shape, stage, max(config.batch_tokens, context))
    refit = 2 * shape.largest * _BYTES[config.precision]
    return Memory(round(weights), round(gradients), round(optimizer), round(weights) if reference else 0, activations,
                  refit)


def _parts(config: MegatronTrainerConfig, weight: Weight) -> int:
    """Ranks over which one replica of these weights is spread."""
    if weight.expert:
        return config.expert_parallel * config.expert_tensor_parallel
    return config.tensor_parallel if weight.cut else 1


def _replicas(config: MegatronTrainerConfig, weight: Weight) -> int:
    """Ranks over which Adam's state of these weights is spread."""
    ranks = config.expert_parallel * config.expert_tensor_parallel if weight.expert else config.tensor_parallel
    return config.workers // (ranks * config.pipeline_parallel)


def _adam(config: MegatronTrainerConfig) -> int:
    """Bytes for each weight: two averages and, where weights are computed in less than float32, their own copy."""
    table = config.optimizer if config.precision_aware_optimizer else {}
    averages = sum(_BYTES.get(str(table.get(name, "float32")), 4) for name in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    if config.precision == "float32":
        return averages
    if config.precision_aware_optimizer and table.get("store_param_remainders", True):
        return averages + 2
    return averages + _BYTES.get(str(table.get("main_params_dtype", "float32")), 4)
