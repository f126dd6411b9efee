"""Make the folder ``base``: a tiny Qwen3 checkpoint in HF form, the same bytes every time.

    python -m grpo_bench_mock.make_base FOLDER

The tokenizer is byte-level BPE with merges learned from what the mock agent and generator say, so that prompts are
short; the chat template writes tool calls as the generator does. The mock parts read no weights; a real part that takes
a mock's place finds random ones, drawn such that replies are gibberish that ends soon.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .sampler import RIGHT, VIEW, WRONG
from .solver import TOOLS
from .world import START

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 480
LONGEST = 65536
WIDTH = 16
END_LOGIT = 1.3
"""How much more the end of a reply leans to what all states share; about one token in a dozen ends one."""

TEMPLATE = """\
{%- macro message(role, content) -%}
{{- '<|im_start|>' ~ role ~ '\\n' ~ content ~ '<|im_end|>\\n' -}}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n# Tools\\n' -}}
{%- for tool in tools -%}{{- (tool.function | tojson) ~ '\\n' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role != 'assistant' -%}
{{- message(m.role, m.content) -}}
{%- else -%}
{{- '<|im_start|>assistant\\n' ~ (m.content or '') -}}
{%- for call in m.tool_calls or [] -%}
{{- '\\n' if m.content or not loop.first -}}
{{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<parameter=' ~ name ~ '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' -}}
{%- endfor -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    said = [VIEW, RIGHT, WRONG, START, *(json.dumps(tool["function"]) for tool in TOOLS), "view: nothing unusual",
            "<|im_start|>system\n# Tools\n<|im_end|>\n<|im_start|>user\n<|im_start|>assistant\n<|im_start|>tool\n",
            "Answer the task. Task of train: find the right answer. Task of heldout: find the right answer."]
    tokenizer.train_from_iterator(said * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    return tokenizer


def make_weights(vocabulary: int, end: int) -> dict[str, np.ndarray]:
    """Embeddings share their first component, so the end token's larger one favours it in every state."""
    random = np.random.RandomState(0)  # its streams never change, unlike a Generator's
    embed = random.normal(0, 0.25, (vocabulary, WIDTH))
    embed[:, 0] = 1.0
    embed[end, 0] += END_LOGIT
    layer = "model.layers.0."
    projections = [f"self_attn.{name}_proj" for name in "qkvo"]
    projections += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    norms = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": np.ones(WIDTH),
               **{f"{layer}{name}.weight": random.normal(0, 0.02, (WIDTH, WIDTH)) for name in projections},
               **{f"{layer}{name}.weight": np.ones(WIDTH) for name in norms}}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    text_end, _, end = (tokenizer.get_vocab()[name] for name in SPECIALS)
    files = {
        "config.json": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32",
                        "vocab_size": tokenizer.get_vocab_size(), "hidden_size": WIDTH, "intermediate_size": WIDTH,
                        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH,
                        "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                        "tie_word_embeddings": True, "max_position_embeddings": LONGEST, "eos_token_id": end,
                        "pad_token_id": text_end},
        "generation_config.json": {"eos_token_id": [end, text_end]},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                  "pad_token": "<|endoftext|>"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    stored = save(make_weights(tokenizer.get_vocab_size(), end), {"format": "pt"})
    (folder / "model.safetensors").write_bytes(stored)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
