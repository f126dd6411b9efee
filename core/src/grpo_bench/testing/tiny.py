"""A policy of a few kilobytes in HF form, so that real trainers and generators have something to work on.

One layer of the Qwen3 architecture over single bytes and three special tokens. Its weights are random but always the
same; the end-of-reply token leans towards every state, so that about one token in a dozen ends a reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIALS)
END = VOCABULARY - 1
"""The token that ends a reply."""
WIDTH = 32
LONGEST = 1024
_END_LOGIT = 1.3
_NEVER_LOGIT = 30.0

TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') -}}
{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<parameter=' ~ name ~ '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' -}}
{%- endfor -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt -}}
"""

Tensors = Mapping[str, npt.NDArray[np.float32]]


def make_tensors(seed: int = 0) -> Tensors:
    """The weights by HF name; each ``seed`` gives others."""
    random = np.random.RandomState(seed)  # its streams never change, unlike a Generator's
    embed = random.normal(0, 0.25, (VOCABULARY, WIDTH))
    embed[:, 0] = 1.0
    embed[END, 0] += _END_LOGIT
    layer = "model.layers.0."
    matrices = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": np.ones(WIDTH),
               **{f"{layer}{name}.weight": random.normal(0, 0.05, (WIDTH, WIDTH)) for name in matrices},
               **{f"{layer}{name}.weight": np.ones(WIDTH) for name in norms}}
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}


def make_endless(seed: int = 0) -> Tensors:
    """The weights of :func:`make_tensors`, but for replies that go on until a limit ends them."""
    tensors = dict(make_tensors(seed))
    embed = tensors["model.embed_tokens.weight"].copy()
    embed[END] = 0.0
    embed[END, 0] = -_NEVER_LOGIT
    return {**tensors, "model.embed_tokens.weight": embed}


def make_policy(folder: Path, seed: int = 0) -> Path:
    """Write the policy into ``folder``."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32",
              "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH, "hidden_act": "silu",
              "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "max_position_embeddings": LONGEST, "eos_token_id": END, "pad_token_id": 256}
    named: dict[str, Any] = {
        "config.json": config, "generation_config.json": {"eos_token_id": [END]},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[2],
                                  "pad_token": SPECIALS[0]}}
    for name, content in named.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _tokenizer().save(str(folder / "tokenizer.json"))
    save_file(dict(make_tensors(seed)), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    return tokenizer
