"""What this generator does on its own account: it computes what Qwen3 computes, in pieces of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grpo_numpy_qwen3.model import Cache, Model

DENSE = {"model_type": "qwen3", "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 12, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": True}
SPARSE = {**DENSE, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
          "moe_intermediate_size": 8}
IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


def weights(settings: dict[str, Any]) -> dict[str, Any]:
    """Random tensors under the names that the settings ask for."""
    random = np.random.RandomState(0)  # its streams never change

    def gated(prefix: str, width: int) -> dict[str, Any]:
        shapes = {"gate": (width, 8), "up": (width, 8), "down": (8, width)}
        return {f"{prefix}.{name}_proj": random.normal(0, 0.4, shape) for name, shape in shapes.items()}

    tensors = {"model.embed_tokens": random.normal(0, 1, (13, 8)), "model.norm": random.uniform(0.5, 1.5, 8)}
    for layer in ("model.layers.0", "model.layers.1"):
        for name, rows in (("q", 16), ("k", 8), ("v", 8)):
            tensors[f"{layer}.self_attn.{name}_proj"] = random.normal(0, 0.4, (rows, 8))
        tensors[f"{layer}.self_attn.o_proj"] = random.normal(0, 0.4, (8, 16))
        for name, size in (("self_attn.q_norm", 4), ("self_attn.k_norm", 4), ("input_layernorm", 8),
                           ("post_attention_layernorm", 8)):
            tensors[f"{layer}.{name}"] = random.uniform(0.5, 1.5, size)
        if settings.get("num_experts"):
            tensors[f"{layer}.mlp.gate"] = random.normal(0, 1, (4, 8))
            for expert in range(4):
                tensors |= gated(f"{layer}.mlp.experts.{expert}", 8)
        else:
            tensors |= gated(f"{layer}.mlp", 12)
    return {f"{name}.weight": tensor.astype(np.float32) for name, tensor in tensors.items()}


@pytest.mark.parametrize("settings", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_pieces_of_any_size_give_the_logits_of_the_whole(settings: dict[str, Any]) -> None:
    model = Model(weights(settings), settings)
    whole = model.extend(Cache(), IDS)
    for sizes in ((1,) * 8, (5, 3), (7, 1)):
        cache, start, pieces = Cache(), 0, []
        for size in sizes:
            pieces.append(model.extend(cache, IDS[start:start + size]))
            start += size
        assert np.allclose(np.concatenate(pieces), whole, atol=1e-5)


@pytest.mark.parametrize(("settings", "expected"), [
    (DENSE, [-5.3529, -0.9126, 1.9285, -8.0004, -0.3691, 2.3127, 4.905, 1.0299, 1.7272, -0.5125, -0.2913, 1.0361,
             -4.7752]),
    (SPARSE, [-1.0675, 1.5283, -7.7882, -6.7575, 0.4904, 3.7832, 5.6829, -1.273, -0.858, -3.5996, 1.1446, 2.9989,
              5.2994]),
], ids=["dense", "sparse"])
def test_logits_are_those_of_transformers(settings: dict[str, Any], expected: list[float]) -> None:
    """The vectors are what transformers 5.24 says after the last token, for these weights."""
    assert Model(weights(settings), settings).extend(Cache(), IDS)[-1] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("change", [{"model.norm.weight": None}, {"model.norm.weight": np.ones(9, np.float32)}])
def test_weights_of_another_shape_are_refused(change: dict[str, Any]) -> None:
    tensors = {name: tensor for name, tensor in {**weights(DENSE), **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=r"model.norm.weight is .* should be \(8,\)"):
        Model(tensors, DENSE)


def test_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match="'llama' is neither"):
        Model({}, {**DENSE, "model_type": "llama"})
