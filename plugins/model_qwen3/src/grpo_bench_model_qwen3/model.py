"""The weights of a policy and the computation of one layer.

Weights are held fused for speed: one matrix for queries, keys and values, one for gate and up, one stack per layer for
all experts. :func:`hf_views` shows them under their Hugging Face names without copying. A layer works on flat tokens
[n, hidden]; how tokens attend to each other is the caller's: training hands in packed rows, sampling a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import kernels
from .config import Qwen3Config

Attend = Callable[[Tensor, Tensor], Tensor]
"""``(q [n, heads, head_dim], keys with values [n, kv_heads, 2 * head_dim]) -> [n, heads * head_dim]``."""


class Block(nn.Module):
    """One layer's weights, for E experts stacked in the first dimension where the model is sparse."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.mlp_size
        query = config.num_attention_heads * config.head_dim
        rows = query + 2 * config.num_key_value_heads * config.head_dim
        stack = (config.num_experts,) if config.is_moe else ()
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.empty(rows, hidden))
        self.q_norm = nn.Parameter(torch.ones(config.head_dim))
        self.k_norm = nn.Parameter(torch.ones(config.head_dim))
        self.out = nn.Parameter(torch.empty(hidden, query))
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.router = nn.Parameter(torch.empty(config.num_experts, hidden)) if config.is_moe else None
        self.gate_up = nn.Parameter(torch.empty(*stack, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(*stack, hidden, width))

    def forward(self, x: Tensor, cis: Tensor, order: Tensor, attend: Attend) -> Tensor:
        """x [n, hidden], cis [n, 1, head_dim / 2] complex, order [rows of qkv] -> [n, hidden]."""
        config, eps = self.config, self.config.rms_norm_eps
        q, keys_values = kernels.qkv(x, self.input_norm, self.qkv, self.q_norm, self.k_norm, cis, order,
                                     config.num_attention_heads, eps)
        x = kernels.project(x, attend(q, keys_values), self.out)
        if self.router is None:
            return kernels.mlp(x, self.post_norm, self.gate_up, self.down, eps)
        return kernels.experts(x, self.post_norm, self.router, self.gate_up, self.down, config.num_experts_per_tok,
                               config.norm_topk_prob, eps)


class Qwen3(nn.Module):
    """A causal language model in float32. ``embed`` [vocab, hidden] is the output matrix too where ``head`` is None."""

    cis: Tensor
    order: Tensor

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        tied = config.tie_word_embeddings
        self.head = None if tied else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        frequency = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32)
                                                / config.head_dim)
        angle = torch.outer(torch.arange(config.max_position_embeddings, dtype=torch.float32), frequency)[:, None]
        self.register_buffer("cis", torch.polar(torch.ones_like(angle), angle), persistent=False)
        self.register_buffer("order", _paired_rows(config), persistent=False)
        self.initialize()

    @torch.no_grad()
    def initialize(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices anew; norms become 1."""
        for parameter in self.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, self.config.initializer_range, generator=generator)

    def run(self, ids: Tensor, positions: Tensor, attend: Callable[[int], Attend]) -> Tensor:
        """Hidden states before the final norm [n, hidden] of flat tokens; ``attend`` gives each layer its attention."""
        x = F.embedding(ids, self.embed)
        cis = self.cis[positions]
        for index, block in enumerate(self.blocks):
            x = block(x, cis, self.order, attend(index))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Output of :meth:`run` [m, hidden] -> logits [m, vocab]."""
        head = self.embed if self.head is None else self.head
        return kernels.linear(kernels.rms_norm(x, self.norm, self.config.rms_norm_eps), head)


def _paired_rows(config: Qwen3Config) -> Tensor:
    """Row order of ``Block.qkv`` that puts component i of each query and key head next to i + head_dim / 2."""
    dim, rotated = config.head_dim, config.num_attention_heads + config.num_key_value_heads
    pairs = torch.arange(dim).view(2, dim // 2).t().flatten()
    paired = (torch.arange(rotated)[:, None] * dim + pairs).flatten()
    return torch.cat((paired, torch.arange(rotated * dim, (rotated + config.num_key_value_heads) * dim)))


def hf_views(model: Qwen3,
             of: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.data) -> dict[str, Tensor]:
    """Every weight under its Hugging Face name, in the order of the published checkpoints, as views of ``of``
    (the parameter's data, its gradient, or any tensor of its shape)."""
    config = model.config
    query = config.num_attention_heads * config.head_dim
    key = config.num_key_value_heads * config.head_dim
    views = {"model.embed_tokens.weight": of(model.embed)}
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        prefix = f"model.layers.{index}."
        views[prefix + "input_layernorm.weight"] = of(block.input_norm)
        q, k, v = of(block.qkv).split((query, key, key))
        for name, view in (("q_proj", q), ("k_proj", k), ("v_proj", v), ("o_proj", of(block.out)),
                           ("q_norm", of(block.q_norm)), ("k_norm", of(block.k_norm))):
            views[f"{prefix}self_attn.{name}.weight"] = view
        views[prefix + "post_attention_layernorm.weight"] = of(block.post_norm)
        if block.router is None:
            views |= _mlp_views(prefix + "mlp.", of(block.gate_up), of(block.down))
            continue
        views[prefix + "mlp.gate.weight"] = of(block.router)
        gate_up, down = of(block.gate_up), of(block.down)
        for expert in range(config.num_experts):
            views |= _mlp_views(f"{prefix}mlp.experts.{expert}.", gate_up[expert], down[expert])
    views["model.norm.weight"] = of(model.norm)
    if model.head is not None:
        views["lm_head.weight"] = of(model.head)
    return views


def _mlp_views(prefix: str, gate_up: Tensor, down: Tensor) -> dict[str, Tensor]:
    gate, up = gate_up.chunk(2)
    return {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up, prefix + "down_proj.weight": down}
