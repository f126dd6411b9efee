"""Make the folder ``base``: a tiny checkpoint in HF form, the same bytes every time.

    python -m grpo_bench_mock.make_base FOLDER

The tokenizer is byte-level BPE with merges learned from what the mock agent and generator say, so that prompts are
short; the chat template writes tool calls as the generator does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import weights
from .solver import TOOLS
from .world import START
from .sampler import LOOK, RIGHT, WRONG

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 384
LONGEST = 4096

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
    said = [LOOK, RIGHT, WRONG, START, *(json.dumps(tool["function"]) for tool in TOOLS), "look: nothing unusual",
            "<|im_start|>system\n# Tools\n<|im_end|>\n<|im_start|>user\n<|im_start|>assistant\n<|im_start|>tool\n",
            "Answer the task. Task of train: find the right answer. Task of validation: find the right answer."]
    tokenizer.train_from_iterator(said * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    return tokenizer


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end, text_end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    files = {
        "config.json": {"architectures": ["MockForCausalLM"], "model_type": "mock",
                        "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": LONGEST,
                        "eos_token_id": end},
        "generation_config.json": {"eos_token_id": [end, text_end]},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                  "pad_token": "<|endoftext|>"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / weights.FILE).write_bytes(weights.dump(weights.initial()))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
