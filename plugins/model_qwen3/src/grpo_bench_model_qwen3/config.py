"""The shape of a policy, and its Hugging Face ``config.json``.

One class covers both kinds: ``num_experts`` 0 is Qwen3 (dense), more is Qwen3-MoE with every layer sparse. Only what
the family's small members use can be expressed: RMS norm on queries and keys, grouped heads, plain rotary embedding, no
sliding window, no attention bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FIXED = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "rope_scaling": None,
    "sliding_window": None, "use_sliding_window": False, "use_cache": True,
}


@dataclass(frozen=True)
class Qwen3Config:
    """Names are those of ``config.json``. ``intermediate_size`` is the dense MLP's width, ``moe_intermediate_size``
    that of one expert; token ids may be None where the tokenizer has no such token."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 32
    intermediate_size: int = 256
    num_experts: int = 0
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    norm_topk_prob: bool = True
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} attention heads are not a multiple of "
                             f"{self.num_key_value_heads} key-value heads")
        if self.num_experts and not 0 < self.num_experts_per_tok <= self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} does not fit {self.num_experts} experts")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, a rotary embedding needs pairs")

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def mlp_size(self) -> int:
        """Width of the MLP a layer has: the dense one or one expert's."""
        return self.moe_intermediate_size if self.is_moe else self.intermediate_size

    def to_hf(self, dtype: str) -> dict[str, Any]:
        """The content of ``config.json`` for weights stored as ``dtype``."""
        shared = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                  "head_dim", "intermediate_size", "rope_theta", "rms_norm_eps", "max_position_embeddings",
                  "tie_word_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
        content: dict[str, Any] = {
            "architectures": ["Qwen3MoeForCausalLM" if self.is_moe else "Qwen3ForCausalLM"],
            "model_type": "qwen3_moe" if self.is_moe else "qwen3",
            "torch_dtype": dtype,
            **{name: getattr(self, name) for name in shared},
            **_FIXED,
            "max_window_layers": self.num_hidden_layers,
        }
        if self.is_moe:
            content |= {
                "num_experts": self.num_experts, "num_experts_per_tok": self.num_experts_per_tok,
                "moe_intermediate_size": self.moe_intermediate_size, "norm_topk_prob": self.norm_topk_prob,
                "decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False,
                "router_aux_loss_coef": 0.001,
            }
        return content

    @classmethod
    def from_hf(cls, content: Mapping[str, Any]) -> Qwen3Config:
        """Read ``config.json`` as published or as transformers 5 writes it; ValueError on what cannot be computed."""
        kind = content.get("model_type")
        if kind not in ("qwen3", "qwen3_moe"):
            raise ValueError(f"model_type {kind!r} is neither qwen3 nor qwen3_moe")
        _refuse_unsupported(content)
        rope = content.get("rope_parameters") or {}
        values = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        if "rope_theta" in rope:
            values["rope_theta"] = rope["rope_theta"]
        if "num_local_experts" in content:
            values["num_experts"] = content["num_local_experts"]
        if kind == "qwen3":
            for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"):
                values.pop(name, None)
        return cls(**values)


def _refuse_unsupported(content: Mapping[str, Any]) -> None:
    for name in ("attention_bias", "hidden_act", "rope_scaling", "use_sliding_window"):
        value = content.get(name, _FIXED[name])
        if value != _FIXED[name]:
            raise ValueError(f"{name} = {value!r} is not supported, only {_FIXED[name]!r}")
    rope_type = (content.get("rope_parameters") or {}).get("rope_type", "default")
    if rope_type != "default":
        raise ValueError(f"rope_type {rope_type!r} is not supported, only 'default'")
    if content.get("mlp_only_layers") or content.get("decoder_sparse_step", 1) != 1:
        raise ValueError("a mix of dense and sparse layers is not supported")
