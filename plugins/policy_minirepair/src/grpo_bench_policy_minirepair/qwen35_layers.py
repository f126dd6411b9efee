"""The layers of Qwen3.5-MoE for pretraining: plain torch on flat tokens of ragged rows.

Every fourth layer attends to all tokens before, through an output gate; the others keep a memory by the gated delta
rule behind a short convolution. Every layer ends in a sparse MLP with a shared expert. The norms' weights are stored
less one, as published, but for the one behind the memory. What a layer holds has its published name in ``tensors``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grpo_bench_model_qwen3 import Packed, kernels, pack

from .delta import Chunks, causal_convolution, cut, gated_delta_rule
from .learner import Of
from .qwen35_config import Qwen35Config


@dataclass(frozen=True)
class Rows:
    """A ragged batch laid out for the model: ``early[i]`` are the flat tokens with no token i + 1 places back."""

    packed: Packed
    chunks: Chunks
    early: tuple[Tensor, ...]


def lay_out(ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer], reach: int) -> Rows:
    packed = pack(ids, offsets, share_prefixes=False)
    early = tuple((packed.positions < back).nonzero()[:, 0] for back in range(1, reach))
    return Rows(packed, cut(offsets), early)


class DeltaNet(nn.Module):
    """The gated delta rule behind a causal convolution, with a gated norm behind it."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.linear_head_dim
        heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
        self.widths = (keys * width, keys * width, heads * width)
        self.q, self.k, self.v = (nn.Parameter(torch.empty(rows, hidden)) for rows in self.widths)
        self.z = nn.Parameter(torch.empty(heads * width, hidden))
        self.gates = nn.Parameter(torch.empty(2 * heads, hidden))
        self.conv = nn.Parameter(torch.empty(config.linear_conv_kernel_dim, sum(self.widths)))
        self.a_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.norm = nn.Parameter(torch.empty(width))
        self.out = nn.Parameter(torch.empty(hidden, heads * width))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """x [n, hidden], normed."""
        config, n = self.config, x.shape[0]
        heads, keys, width = config.linear_num_value_heads, config.linear_num_key_heads, config.linear_head_dim
        mixed = F.linear(x, torch.cat((self.q, self.k, self.v)))
        q, k, v = causal_convolution(mixed, self.conv, rows.early).split(self.widths, -1)
        q, k = (_unit(part.view(n, keys, width)) for part in (q, k))
        b, a = F.linear(x, self.gates).chunk(2, -1)
        g = -self.a_log.exp() * F.softplus(a + self.dt_bias)
        y = gated_delta_rule(q * width ** -0.5, k, v.view(n, heads, width), g, b.sigmoid(), rows.chunks)
        y = kernels.rms_norm(y.reshape(n * heads, width), self.norm, config.rms_norm_eps)
        return F.linear(y.view(n, heads * width) * F.silu(F.linear(x, self.z)), self.out)

    def matrices(self, of: Of) -> dict[str, Tensor]:
        return {name: of(getattr(self, name)) for name in ("q", "k", "v", "z", "out")}

    def tensors(self) -> dict[str, Tensor]:
        b, a = self.gates.chunk(2)
        return {
            "linear_attn.in_proj_qkv.weight": torch.cat((self.q, self.k, self.v)),
            "linear_attn.in_proj_z.weight": self.z, "linear_attn.in_proj_b.weight": b,
            "linear_attn.in_proj_a.weight": a, "linear_attn.conv1d.weight": self.conv.t()[:, None],
            "linear_attn.A_log": self.a_log, "linear_attn.dt_bias": self.dt_bias,
            "linear_attn.norm.weight": self.norm, "linear_attn.out_proj.weight": self.out,
        }


class Attention(nn.Module):
    """Grouped-head attention; a sigmoid gate per component behind it."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        self.q, self.gate = (nn.Parameter(torch.empty(config.num_attention_heads * dim, hidden)) for _ in range(2))
        self.k, self.v = (nn.Parameter(torch.empty(config.num_key_value_heads * dim, hidden)) for _ in range(2))
        self.q_norm, self.k_norm = (nn.Parameter(torch.empty(dim)) for _ in range(2))
        self.out = nn.Parameter(torch.empty(hidden, config.num_attention_heads * dim))

    def forward(self, x: Tensor, rows: Rows, turn: tuple[Tensor, Tensor]) -> Tensor:
        """x [n, hidden], normed; ``turn`` is cosine and sine [n, 1, rotary]."""
        config, n = self.config, x.shape[0]
        heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, k, v, gate = F.linear(x, torch.cat((self.q, self.k, self.v, self.gate))).split(
            (heads * dim, kv * dim, kv * dim, heads * dim), -1)
        q = _turned(_norm(q.reshape(n, heads, dim), self.q_norm, config.rms_norm_eps), turn) * dim ** -0.5
        k = _turned(_norm(k.reshape(n, kv, dim), self.k_norm, config.rms_norm_eps), turn)
        keys_values = torch.cat((k, v.reshape(n, kv, dim)), -1)
        y = kernels.attention(q.contiguous(), keys_values, rows.packed.tiles, rows.packed.scatter)
        return F.linear(y * gate.sigmoid(), self.out)

    def matrices(self, of: Of) -> dict[str, Tensor]:
        return {name: of(getattr(self, name)) for name in ("q", "k", "v", "gate", "out")}

    def tensors(self) -> dict[str, Tensor]:
        dim, hidden = self.config.head_dim, self.config.hidden_size
        q = torch.cat((self.q.view(-1, dim, hidden), self.gate.view(-1, dim, hidden)), 1)  # the gate behind each head
        return {
            "self_attn.q_proj.weight": q.flatten(0, 1), "self_attn.k_proj.weight": self.k,
            "self_attn.v_proj.weight": self.v, "self_attn.o_proj.weight": self.out,
            "self_attn.q_norm.weight": self.q_norm, "self_attn.k_norm.weight": self.k_norm,
        }


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: Qwen35Config, kind: str) -> None:
        super().__init__()
        self.config, self.kind = config, kind
        hidden, width, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.input_norm, self.post_norm = (nn.Parameter(torch.empty(hidden)) for _ in range(2))
        self.mixer = DeltaNet(config) if kind == "linear_attention" else Attention(config)
        self.router = nn.Parameter(torch.empty(experts, hidden))
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.shared_gate_up = nn.Parameter(torch.empty(2 * width, hidden))
        self.shared_down = nn.Parameter(torch.empty(hidden, width))
        self.shared_gate = nn.Parameter(torch.empty(1, hidden))

    def forward(self, x: Tensor, rows: Rows, turn: tuple[Tensor, Tensor]) -> Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        normed = kernels.rms_norm(x, 1.0 + self.input_norm, eps)
        mixed = self.mixer(normed, rows) if self.kind == "linear_attention" else self.mixer(normed, rows, turn)
        x = x + mixed
        norm = 1.0 + self.post_norm
        normed = kernels.rms_norm(x, norm, eps)
        gate, up = F.linear(normed, self.shared_gate_up).chunk(2, -1)
        shared = F.linear(F.silu(gate) * up, self.shared_down) * F.linear(normed, self.shared_gate).sigmoid()
        return shared + kernels.experts(x, norm, self.router, self.gate_up, self.down, config.num_experts_per_tok, True,
                                        eps)

    def matrices(self, of: Of) -> dict[str, Tensor]:
        named = {f"mixer.{name}": view for name, view in self.mixer.matrices(of).items()}
        named |= {"shared_gate": of(self.shared_gate_up).chunk(2)[0], "shared_up": of(self.shared_gate_up).chunk(2)[1],
                  "shared_down": of(self.shared_down)}
        for expert, (gate_up, down) in enumerate(zip(of(self.gate_up), of(self.down), strict=True)):
            gate, up = gate_up.chunk(2)
            named |= {f"gate.{expert}": gate, f"up.{expert}": up, f"down.{expert}": down}
        return named

    def tensors(self) -> dict[str, Tensor]:
        named = {"input_layernorm.weight": self.input_norm, "post_attention_layernorm.weight": self.post_norm,
                 "mlp.gate.weight": self.router, "mlp.shared_expert_gate.weight": self.shared_gate}
        named |= self.mixer.tensors() | _mlp_tensors("mlp.shared_expert.", self.shared_gate_up, self.shared_down)
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            named |= _mlp_tensors(f"mlp.experts.{expert}.", gate_up, down)
        return named


def _mlp_tensors(prefix: str, gate_up: Tensor, down: Tensor) -> dict[str, Tensor]:
    gate, up = gate_up.chunk(2)
    return {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up, prefix + "down_proj.weight": down}


def angles(config: Qwen35Config, positions: Tensor) -> tuple[Tensor, Tensor]:
    frequency = config.rope_theta ** -(torch.arange(0, config.rotary, 2).float() / config.rotary)
    angle = torch.outer(positions.float(), frequency)[:, None]
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (i, i + rotary / 2) among the first ``rotary`` components of x [n, heads, dim]."""
    cosine, sine = turn
    moving, fixed = x.split((cosine.shape[-1], x.shape[-1] - cosine.shape[-1]), -1)
    low, high = moving.chunk(2, -1)
    return torch.cat((moving * cosine + torch.cat((-high, low), -1) * sine, fixed), -1)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return kernels.rms_norm(x.reshape(-1, x.shape[-1]), 1.0 + weight, eps).view(x.shape)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
