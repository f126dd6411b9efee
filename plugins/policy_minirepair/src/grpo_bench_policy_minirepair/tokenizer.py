"""The tokenizer: byte-level BPE over the corpus, with the scaffolding of chat and tool calls as single tokens.

Tool calls cost a few tokens that way, and tokens are time. Words keep their leading space, digits stay single, and a
line number of a listing is one token with the line break before it and the tab behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .template import SOURCE

END_OF_TEXT, TURN_START, TURN_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SCAFFOLD = (
    "<|im_start|>system\nTools: view, edit, test, submit<|im_end|>\n<|im_start|>user\n",
    "<|im_start|>user\n",
    "\n<|im_start|>assistant\n",
    "\n<|im_start|>user\n<tool_response>\n",
    "\n</tool_response>",
    "<tool_call>\n<function=edit>\n<parameter=line>\n",
    "\n</parameter>\n<parameter=text>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    *(f"<tool_call>\n<function={name}>\n</function>\n</tool_call>" for name in ("view", "test", "submit")),
)
_PIECES = r"\n?\d+\t| {2,}|\n+| ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]+|\s"

_RARE = 30
"""Merges seen less often are not made."""


def train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of at most ``vocabulary`` tokens; merges are learned from what is left between scaffolding."""
    scaffold = re.compile("|".join(re.escape(text) for text in sorted((*SCAFFOLD, *SPECIAL), key=len, reverse=True)))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([  # type: ignore[assignment]
        pre_tokenizers.Split(Regex(_PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - len(SCAFFOLD), min_frequency=_RARE,
                                  special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((piece for text in texts for piece in scaffold.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in SCAFFOLD])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer, chat template and generation settings in Hugging Face form."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, "eos_token": TURN_END,
        "pad_token": END_OF_TEXT, "bos_token": None, "unk_token": None, "clean_up_tokenization_spaces": False,
    }
    generation = {"eos_token_id": tokenizer.token_to_id(TURN_END), "pad_token_id": tokenizer.token_to_id(END_OF_TEXT)}
    for name, content in (("tokenizer_config.json", settings), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(SOURCE, "utf-8")
