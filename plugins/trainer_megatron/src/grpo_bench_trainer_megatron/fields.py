"""From settings to fields of Megatron's own configuration objects.

Three dictionaries by Megatron's names: for the model provider, OptimizerConfig and DistributedDataParallelConfig.
Values are plain data (a dtype is text, so is a member of an enumeration); :func:`assign` and :func:`typed` turn them
into what Megatron takes, inside a worker. The tables of the settings come last and win.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from .config import MegatronTrainerConfig, Switch

FUSIONS = ("apply_rope_fusion", "masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion",
           "moe_permute_fusion", "moe_router_fusion", "persist_layer_norm")
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class Features:
    """What the workers' environment has."""

    cuda: bool = False
    transformer_engine: bool = False
    apex: bool = False
    """Its kernel that adds a product to a sum of gradients; Megatron's own layers have no other."""

    @classmethod
    def here(cls) -> Features:
        """Of this process."""
        import torch

        cuda = torch.cuda.is_available()
        return cls(cuda, cuda and find_spec("transformer_engine") is not None,
                   cuda and find_spec("fused_weight_gradient_mlp_cuda") is not None)


def resolve(value: Switch, there: bool) -> bool:
    """A switch with auto taken for what is there."""
    return there if value == "auto" else value


def model_fields(config: MegatronTrainerConfig, features: Features) -> dict[str, Any]:
    """For the provider that Bridge makes of an HF checkpoint."""
    bf16 = config.precision == "bfloat16"
    engine = resolve(config.transformer_engine, features.transformer_engine)
    fused = resolve(config.fusions, engine and features.cuda)
    fields: dict[str, Any] = {
        "tensor_model_parallel_size": config.tensor_parallel,
        "pipeline_model_parallel_size": config.pipeline_parallel,
        "virtual_pipeline_model_parallel_size": config.virtual_pipeline if config.virtual_pipeline > 1 else None,
        "context_parallel_size": config.context_parallel,
        "expert_model_parallel_size": config.expert_parallel,
        "expert_tensor_parallel_size": config.expert_tensor_parallel,
        "sequence_parallel": config.sequence_parallel_on,
        "params_dtype": config.precision, "pipeline_dtype": config.precision, "bf16": bf16, "fp16": False,
        "moe_router_dtype": "fp32" if config.router_precision == "float32" else None,
        "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0, "mtp_num_layers": None,
        "moe_token_dispatcher_type": config.dispatcher,
        "moe_grouped_gemm": resolve(config.grouped_gemm, engine),
        "moe_shared_expert_overlap": False,
        "attention_backend": config.attention,
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "variable_seq_lengths": config.pipeline_parallel > 1,
        "deterministic_mode": config.deterministic or not features.cuda,
        "use_cpu_initialization": not features.cuda,
        "cross_entropy_loss_fusion": False,
        **dict.fromkeys(FUSIONS, fused), "gradient_accumulation_fusion": fused and features.apex,
        **_recompute_fields(config),
    }
    if config.dispatcher == "flex":
        fields |= {"moe_flex_dispatcher_backend": config.flex_backend,
                   "moe_flex_dispatcher_num_sms": None if config.flex_sms == "auto" else config.flex_sms}
    return {**fields, **config.model}


def _recompute_fields(config: MegatronTrainerConfig) -> dict[str, Any]:
    if config.recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform",
                "recompute_num_layers": config.recompute_layers}
    if config.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(config.recompute_modules) or None}
    return {"recompute_granularity": None}


def optimizer_fields(config: MegatronTrainerConfig) -> dict[str, Any]:
    """For OptimizerConfig. ``clip_grad`` 0 is off."""
    fields = {
        "optimizer": "adam", "lr": config.learning_rate, "min_lr": config.learning_rate,
        "adam_beta1": config.betas[0], "adam_beta2": config.betas[1], "adam_eps": config.eps,
        "weight_decay": config.weight_decay, "decoupled_weight_decay": True,
        "clip_grad": config.clip_norm or 0.0,
        "bf16": config.precision == "bfloat16", "fp16": False, "params_dtype": config.precision,
        "use_distributed_optimizer": True, "use_precision_aware_optimizer": config.precision_aware_optimizer,
        "overlap_param_gather": config.overlap,
    }
    return {**fields, **config.optimizer}


def ddp_fields(config: MegatronTrainerConfig) -> dict[str, Any]:
    """For DistributedDataParallelConfig. Gradients are summed, in float32: the loss is divided by global counts."""
    fields = {
        "use_distributed_optimizer": True, "grad_reduce_in_fp32": True, "average_in_collective": False,
        "overlap_grad_reduce": config.overlap, "overlap_param_gather": config.overlap,
    }
    return {**fields, **config.ddp}


def assign(target: Any, fields: Mapping[str, Any]) -> None:
    """Set fields of a provider that exists."""
    for name, value in fields.items():
        setattr(target, name, _typed(value, getattr(target, name, None)))


def typed(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """A dataclass of Megatron's with these fields."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return kind(**{name: _typed(value, defaults.get(name)) for name, value in fields.items()})


def _typed(value: Any, like: Any) -> Any:
    import torch

    if isinstance(value, str) and isinstance(like, enum.Enum):
        return type(like)[value]
    if isinstance(value, str) and (isinstance(like, torch.dtype) or value in DTYPES):
        return getattr(torch, value)
    return value
