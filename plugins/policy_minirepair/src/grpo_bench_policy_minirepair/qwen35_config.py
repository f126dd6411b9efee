"""The shape of a Qwen3.5-MoE to pretrain, and its Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Qwen35Config:
    """Names are those of ``config.json``; ``rotary`` is how many of ``head_dim`` components turn with the position."""

    vocab_size: int
    eos_token_id: int | None
    pad_token_id: int | None
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rotary: int = 16
    linear_num_value_heads: int = 1
    linear_num_key_heads: int = 1
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 96
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 512

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` for weights stored as bfloat16."""
        own = ("vocab_size", "eos_token_id", "pad_token_id", "hidden_size", "num_hidden_layers", "num_attention_heads",
               "num_key_value_heads", "head_dim", "linear_num_value_heads", "linear_num_key_heads",
               "linear_conv_kernel_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "rms_norm_eps",
               "max_position_embeddings", "layer_types")
        turning = self.rotary / self.head_dim
        return {
            "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "dtype": "bfloat16",
            **{name: getattr(self, name) for name in own},
            "linear_key_head_dim": self.linear_head_dim, "linear_value_head_dim": self.linear_head_dim,
            "shared_expert_intermediate_size": self.moe_intermediate_size, "partial_rotary_factor": turning,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta,
                                "partial_rotary_factor": turning},
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "hidden_act": "silu",
            "initializer_range": 0.02, "output_router_logits": False, "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": False, "use_cache": True,
        }

    @classmethod
    def from_hf(cls, content: Mapping[str, Any]) -> Qwen35Config:
        """Read what :meth:`to_hf` made."""
        values = {**content, "linear_head_dim": content["linear_key_head_dim"],
                  "rotary": round(content["partial_rotary_factor"] * content["head_dim"]),
                  "rope_theta": content["rope_parameters"]["rope_theta"]}
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def layer_types(self) -> list[str]:
        return ["linear_attention" if (layer + 1) % 4 else "full_attention" for layer in range(self.num_hidden_layers)]
