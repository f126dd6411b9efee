"""A tiny checkpoint folder (byte-level tokenizer, chat template) and a scripted generator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_bench.contract import FinishReason, Purpose, Sample, Sampling
from grpo_bench.contract.values import Ids
from grpo_bench.policy import ChatFormat, Policy, Session, make_policy
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
CORPUS = ["fix the function that adds numbers and return the value of the parameter edit line text view test "] * 20

TEMPLATE = """
{%- macro call(item) -%}
<tool_call>
<function={{ item.function.name }}>
{% for key, value in item.function.arguments | items -%}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endmacro -%}
{%- if tools -%}
<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{{ "\\n" }}{% endfor -%}
<|im_end|>
{% endif -%}
{%- set ns = namespace(user=-1) -%}
{%- for message in messages -%}
{%- if message.role == "user" %}{% set ns.user = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == "assistant" -%}
{%- if THINKING and loop.index0 > ns.user -%}
{{ "<think>\\n" + message.reasoning_content | default("", true) + "\\n</think>\\n\\n" }}
{%- endif -%}
{% generation %}{{ message.content }}{% endgeneration %}
{%- for item in message.tool_calls or [] -%}
{{ "\\n" if message.content or not loop.first }}{{ call(item) }}
{%- endfor -%}
{%- else -%}
{{ message.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if THINKING %}{{ "<think>\\n" if enable_thinking else "<think>\\n\\n</think>\\n\\n" }}{% endif -%}
{%- endif -%}
"""


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return tokenizer


def write_checkpoint(folder: Path, *, thinking: bool = False, template: str = TEMPLATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    switch = f"{{%- set THINKING = {str(thinking).lower()} -%}}"
    if not thinking:
        template = template.replace("</think>", "").replace("<think>", "")
    (folder / "chat_template.jinja").write_text(switch + template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def thinking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("thinking"), thinking=True)


@pytest.fixture
def write() -> Callable[..., Path]:
    return write_checkpoint


@dataclass
class HandClock:
    """Moves when told, and when the scripted generator waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_utc(self) -> str:
        return "2026-01-02T03:04:05.000000+00:00"


@dataclass
class Request:
    id: str
    ids: Ids
    sampling: Sampling
    stream: str
    affinity: str
    deadline_s: float


@dataclass
class ScriptedClient:
    """Answers each request with the next of ``replies``: text is written byte by byte (never as the tokenizer would)
    and ended with the stop token; a Sample is given as it is; an exception is raised; a number of seconds is waited."""

    chat_format: ChatFormat
    clock: HandClock
    replies: list[Any] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    version: int = 7

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        self.requests.append(Request(request_id, ids.copy(), sampling, stream, affinity, deadline_s))
        reply = self.replies.pop(0)
        while isinstance(reply, int | float):
            await asyncio.sleep(reply)
            self.clock.now += reply
            reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Sample) else self.sample(reply, sampling.max_tokens)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def release(self, rollout_id: str) -> None:
        self.released.append(rollout_id)

    def sample(self, text: str, max_tokens: int = 10**6) -> Sample:
        ids = np.concatenate([self.spell(text), np.array([2], np.int32)])
        finish = FinishReason.STOP if len(ids) <= max_tokens else FinishReason.LENGTH
        ids = ids[:max_tokens]
        return Sample(ids, -np.arange(1, len(ids) + 1).astype(np.float32), finish, ((len(ids), self.version),))

    def spell(self, text: str) -> Ids:
        """One token per byte, where it is not markup."""
        pieces: Iterable[str] = [text]
        for mark in MARKUP:
            pieces = [part for piece in pieces for part in _cut(piece, mark)]
        ids = [self.chat_format.encode(piece) if piece in MARKUP else np.concatenate(
            [self.chat_format.encode(character) for character in piece]) for piece in pieces if piece]
        return np.concatenate(ids) if ids else np.zeros(0, np.int32)


def _cut(piece: str, mark: str) -> list[str]:
    parts: list[str] = []
    for index, part in enumerate(piece.split(mark)):
        parts += [mark, part] if index else [part]
    return parts


def train_sampling(**changes: Any) -> Sampling:
    sampling = Sampling(
        purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0,
        presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(2, 0), max_tokens=400, max_context=4000, seed=11)
    return replace(sampling, **changes)


@dataclass
class Bench:
    """A policy over a scripted client."""

    policy: Policy
    client: ScriptedClient

    def open(self, rollout_id: str = "r0", request_s: float = 60.0, **sampling: Any) -> Session:
        return self.policy.open(rollout_id, "group-0", train_sampling(**sampling), request_s)


@pytest.fixture
def bench(folder: Path) -> Callable[..., Bench]:
    def make(*replies: Any, folder: Path = folder, enable_thinking: bool = False, max_context: int = 4000) -> Bench:
        client = ScriptedClient(ChatFormat(folder), HandClock(), list(replies))
        config = {"folder": str(folder), "max_context": max_context, "enable_thinking": enable_thinking,
                  "tool_parser": "qwen3_xml"}
        return Bench(make_policy(config, client, client.clock), client)

    return make
