"""Between conversation and tokens: chat template, tokenizer, stop tokens and tool parser of one checkpoint folder.

The folder is in HF form: ``tokenizer.json``; the template in ``chat_template.jinja`` or in ``tokenizer_config.json``;
stop tokens from ``generation_config.json`` and ``tokenizer_config.json``. Generators see ids only; nothing but this
class knows how they read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

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
        self._parser = _PARSERS[tool_parser]
        self._tokenizer = _load_tokenizer(folder)
        self._reasons = "</think>" in source
        try:
            self._template = compile_template(source)
        except TemplateSyntaxError as error:
            raise InputError(f"chat template of {folder}: {error.message} (line {error.lineno})") from error
        self._encode_short = lru_cache(maxsize=2048)(self._encode)
        self._names = {name: _token_text(config[name]) for name in _SPECIALS if config.get(name)}
        self.stop_ids = self._find_stop_ids(folder)
        self.eos_id = self.stop_ids[0]

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, up to where the policy's next reply begins."""
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
        if "eos_token" in self._names:
            ids = [*ids, self._tokenizer.token_to_id(self._names["eos_token"])]
        ids = list(dict.fromkeys(int(item) for item in ids if item is not None))
        if not ids:
            raise InputError(f"{folder} names no end-of-reply token",
                             hint="eos_token_id in generation_config.json or eos_token in tokenizer_config.json")
        return tuple(ids)


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path} does not exist", hint="policy.checkpoint must name a folder in HF form")
    try:
        tokenizer = Tokenizer.from_file(str(path))
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
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {item["name"]: item["template"] for item in source}
        source = named.get("default")
    if not isinstance(source, str):
        raise InputError(f"{folder} has no chat template",
                         hint="expected chat_template.jinja or chat_template in tokenizer_config.json")
    return source


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    return found


def _token_text(token: Any) -> str:
    return token["content"] if isinstance(token, Mapping) else token


def _without_surrogates(text: str) -> str:
    """Lone surrogates (undecodable bytes of a tool's output, escapes in JSON) have no UTF-8 form and become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
