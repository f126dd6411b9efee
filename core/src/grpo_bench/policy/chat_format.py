"""Between conversation and tokens: chat template, tokenizer, stop tokens and tool parser of one checkpoint folder.

The folder is in HF form: ``tokenizer.json``; the template in ``chat_template.jinja`` or in ``tokenizer_config.json``;
stop tokens from ``generation_config.json`` and ``tokenizer_config.json``. Generators see ids only; nothing but this
class knows how they read.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from tokenizers import Tokenizer

from ..contract import InputError
from ..contract.values import Ids
from .messages import ConversationError
from .template import compile_template
from .toolcalls import Parsed, parse_qwen3_xml

_PARSERS = {"qwen3_xml": parse_qwen3_xml}
_SHORT = 2000
"""Characters up to which encodings are remembered: the prompts of a group and most answers of tools come again."""

_SHORT_CONVERSATION = 8000
"""Bytes, marshalled, up to which rendered conversations are remembered: those of a group begin alike. Marshalling keeps
plain values and their types exactly, and refuses all others."""
_VALUES_ONLY = 2
"""The format of marshal in which equal values give equal bytes, whoever else refers to them."""

_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatFormat:
    """Chat format of one checkpoint. ``stop_ids`` are all tokens that end a reply, ``eos_id`` the first of them."""

    def __init__(self, folder: str | Path, enable_thinking: bool = False, tool_parser: str = "qwen3_xml") -> None:
        folder = Path(folder)
        if tool_parser not in _PARSERS:
            raise InputError(f"unknown tool parser {tool_parser!r}", hint=f"known: {', '.join(_PARSERS)}")
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        self.enable_thinking = enable_thinking
        self._folder = folder
        self._parser = _PARSERS[tool_parser]
        self._tokenizer = _load_tokenizer(folder)
        self._reasons = "</think>" in source
        try:
            self._template = compile_template(source)
        except TemplateSyntaxError as error:
            raise InputError(f"chat template of {folder}: {error.message} (line {error.lineno})") from error
        except RecursionError as error:
            raise InputError(f"chat template of {folder}: nested too deeply") from error
        self._encode_short = lru_cache(maxsize=2048)(self._encode)
        self._render_short = lru_cache(maxsize=1024)(lambda key: self._render(*marshal.loads(key)))
        self._names = {name: _token_text(config[name], name, folder) for name in _SPECIALS if config.get(name)}
        self.stop_ids = self._find_stop_ids(folder)
        self.eos_id = self.stop_ids[0]

    def check(self, vocab_size: int) -> None:
        """InputError unless a conversation can be told to a policy of ``vocab_size`` tokens."""
        known = max(self._tokenizer.get_vocab_size(), *(stop + 1 for stop in self.stop_ids))
        if known > vocab_size:
            raise InputError(f"the tokenizer of {self._folder} has {known} tokens, config.json a vocab_size of "
                             f"{vocab_size}")
        if min(self.stop_ids) < 0:
            raise InputError(f"end-of-reply token {min(self.stop_ids)} of {self._folder} is no token id")
        try:
            prompt = self.encode(self.render([{"role": "user", "content": "Hello"}], []))
        except Exception as error:  # a template is a program, and may fail in any way
            raise InputError(f"chat template of {self._folder}: {error}") from error
        if not len(prompt):
            raise InputError(f"chat template of {self._folder}: makes no prompt of a conversation")

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, up to where the policy's next reply begins."""
        try:
            key = marshal.dumps(cast(Any, (messages, tools)), _VALUES_ONLY)
        except ValueError:
            return self._render(messages, tools)
        return self._render_short(key) if len(key) <= _SHORT_CONVERSATION else self._render(messages, tools)

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            text = self._template.render(messages=messages, tools=tools or None, add_generation_prompt=True,
                                         enable_thinking=self.enable_thinking, **self._names)
        except (TemplateError, TypeError, ValueError) as error:
            raise ConversationError(f"the chat template refuses this conversation: {error}") from error
        return text if text.isascii() else _without_surrogates(text)

    def encode(self, text: str) -> Ids:
        """Token ids [n] of ``text``, nothing added; not to be written to."""
        return self._encode_short(text) if len(text) <= _SHORT else self._encode(text)

    def decode(self, ids: Ids) -> str:
        """Text of ``ids``, special tokens included. Texts of parts add up, but for characters cut in two."""
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def parse(self, text: str, call_id: str = "call") -> Parsed:
        """Take a reply (without its stop token) apart; tool calls are named ``<call_id>_<index>``."""
        if not self._reasons:
            return self._parser(text, call_id)
        before, mark, after = text.partition("</think>")
        if mark:
            parsed = self._parser(after.lstrip("\n"), call_id)
            return replace(parsed, reasoning=before.removeprefix("<think>").strip("\n"))
        if self.enable_thinking:
            return Parsed("", reasoning=text.removeprefix("<think>").strip("\n"))
        return self._parser(text, call_id)

    def _encode(self, text: str) -> Ids:
        ids = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        ids.flags.writeable = False
        return ids

    def _find_stop_ids(self, folder: Path) -> tuple[int, ...]:
        found = _read_json(folder / "generation_config.json").get("eos_token_id")
        ids = [] if found is None else found if isinstance(found, list) else [found]
        if wrong := [item for item in ids if type(item) is not int]:
            raise InputError(f"{folder / 'generation_config.json'}: eos_token_id {wrong[0]!r:.80} is no token id")
        if "eos_token" in self._names:
            ids = [*ids, self._tokenizer.token_to_id(self._names["eos_token"])]
        ids = list(dict.fromkeys(item for item in ids if item is not None))
        if not ids:
            raise InputError(f"{folder} names no end-of-reply token",
                             hint="eos_token_id in generation_config.json or eos_token in tokenizer_config.json")
        return tuple(ids)


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path} does not exist", hint="policy.checkpoint must name a folder in HF form")
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing more specific
        raise InputError(f"{path} is no tokenizer: {error}", hint="policy.checkpoint must name a folder in HF form"
                         ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    probe = " a\n b"
    if tokenizer.decode(tokenizer.encode(probe, add_special_tokens=False).ids, skip_special_tokens=False) != probe:
        raise InputError(f"the tokenizer of {folder} changes text that it encodes and decodes",
                         hint="prefixes can only be recorded with a lossless tokenizer, such as byte-level BPE")
    return tokenizer


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [item for item in source if isinstance(item, dict) and item.get("name") == "default"]
        source = named[0].get("template") if named else None
    if not isinstance(source, str):
        raise InputError(f"{folder} has no chat template",
                         hint="expected chat_template.jinja or chat_template in tokenizer_config.json")
    return source


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} should hold a JSON object")
    return found


def _token_text(token: Any, name: str, folder: Path) -> str:
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise InputError(f"{folder / 'tokenizer_config.json'}: {name} {token!r:.80} is no token")
    return text


def _without_surrogates(text: str) -> str:
    """Lone surrogates (undecodable bytes of a tool's output, escapes in JSON) have no UTF-8 form and become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
