"""A model's layers in plain torch, where there is no Transformer Engine.

Their parameters have the names that Transformer Engine's would have; Bridge finds a checkpoint's tensors by them.
Attention handles rows laid end to end, each seeing itself only; the gated delta net cannot. Norms compute in float32.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.ssm.gated_delta_net import common as delta_net
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import (
    TransformerLayer, TransformerLayerSubmodules, get_transformer_layer_offset,
)
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def _normalized(x: Tensor, weight: Tensor, config: Any) -> Tensor:
    scale = weight.float() + 1 if config.layernorm_zero_centered_gamma else weight.float()
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + config.layernorm_epsilon) * scale).to(x.dtype)


def _norm_weight(config: Any, size: int) -> torch.nn.Parameter:
    value = 0.0 if config.layernorm_zero_centered_gamma else 1.0
    weight = torch.nn.Parameter(torch.full((size,), value, dtype=config.params_dtype))
    vars(weight)["sequence_parallel"] = config.sequence_parallel  # its gradient is summed over tensor-parallel ranks
    return weight


class RMSNorm(torch.nn.Module):
    """Megatron's own refuses sequence parallelism and weights centered at 0."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.config = config
        self.weight = _norm_weight(config, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return _normalized(x, self.weight, self.config)


class TorchLayerNormColumnParallelLinear(ColumnParallelLinear):
    """A norm and the linear after it. Bridge knows by the end of the name how the weight is split."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = _norm_weight(config, input_size)

    def forward(self, input_: Tensor, *arguments: Any, **options: Any) -> Any:
        return super().forward(_normalized(input_, self.layer_norm_weight, self.config), *arguments, **options)


class Attention(DotProductAttention):
    """Causal, over [s, b, heads, size], or over rows laid end to end in [t, heads, size]."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, attn_mask_type: Any = None,
                attention_bias: Any = None, packed_seq_params: Any = None, **_: Any) -> Tensor:
        if packed_seq_params is None:
            mixed = self._attend(*(part.permute(1, 2, 0, 3) for part in (query, key, value))).permute(2, 0, 1, 3)
            return mixed.flatten(2)
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        rows = [self._attend(*(part[start:stop].transpose(0, 1)[None] for part in (query, key, value)))[0]
                for start, stop in pairwise(bounds)]
        return torch.cat([row.transpose(0, 1) for row in rows]).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[b, heads, s, size]; keys and values may have fewer heads."""
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.softmax_scale,
                                            enable_gqa=query.shape[1] != key.shape[1])


class _Parts(LocalSpecProvider):
    """Which module stands where."""

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        return TorchLayerNormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False) -> Any:
        if not rms_norm:
            raise ValueError("without Transformer Engine only models with RMS norms can be computed")
        return RMSNorm

    def core_attention(self) -> type:
        return Attention


def block_spec(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> TransformerBlockSubmodules:
    """The layers of one pipeline stage."""
    parts, rms_norm = _Parts(), config.normalization == "RMSNorm"
    norm = parts.layer_norm(rms_norm=rms_norm)
    linear = [0] * config.num_layers
    if variants.is_linear_attention_variant(config.experimental_attention_variant):
        linear = variants.get_linear_attention_pattern(config=config)
        _delta_net_without_kernels()
    sparse = variants.get_moe_layer_pattern(config) if config.num_moe_experts is not None else [0] * config.num_layers
    first = get_transformer_layer_offset(config, vp_stage=vp_stage, pp_rank=pp_rank)
    stage = range(first, first + get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank))
    layers = []
    for number in stage:
        attention = variants.get_gated_delta_net_module_spec(config, parts) if linear[number] else _attention(config)
        if sparse[number]:
            mlp = get_moe_module_spec_for_backend(backend=parts, num_experts=config.num_moe_experts,
                                                  moe_grouped_gemm=False)
        else:
            mlp = get_mlp_module_spec_for_backend(backend=parts, num_experts=None)
        layers.append(ModuleSpec(module=TransformerLayer, submodules=TransformerLayerSubmodules(
            input_layernorm=IdentityOp, self_attention=attention, self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm if sparse[number] else IdentityOp, mlp=mlp, mlp_bda=get_bias_dropout_add)))
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=norm)


def _attention(config: Any) -> ModuleSpec:
    parts = _Parts()
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    return ModuleSpec(
        module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, metainfo={"fuse_input_layernorm": True},
        submodules=SelfAttentionSubmodules(
            linear_qkv=parts.column_parallel_layer_norm_linear(), core_attention=parts.core_attention(),
            linear_proj=parts.row_parallel_linear(), q_layernorm=norm, k_layernorm=norm))


def _delta_net_without_kernels() -> None:
    """The gated delta net refuses to exist without its kernels' package, though in deterministic mode it uses but one
    function of it."""
    if not delta_net.HAVE_FLA:
        delta_net.HAVE_FLA = True
        delta_net.l2norm = _l2norm


def _l2norm(x: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(dim, keepdim=True) + eps)).to(x.dtype)
