"""A stand-in generator that brings its own policy: rollouts talk to that, and to no text of any model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grpo_bench.contract import (
    Capabilities, FinishReason, Kind, PlanError, Plugin, Reply, Role, Sampling, Settings, Status, TokenSequence, Turn,
)
from grpo_bench.engine import conduct, make_folder, run_virtual
from grpo_bench.observers import read_events
from grpo_bench.registry import Plan, make_plan, resolve
from grpo_bench.registry.installed import Installed
from grpo_bench.registry.loading import checked
from grpo_bench.testing import GeneratorSuite

MADE: list[TinyPolicy] = []
VERSION = 0


class Config(Settings):
    tokens: int = 3


class TinyGenerator:
    """No engines, and weights of which it keeps the version."""

    async def start(self) -> None:
        """There is nothing to start."""

    def addresses(self) -> tuple[()]:
        return ()

    async def pause(self, mode: str) -> None:
        """Nothing runs in it."""

    async def receive(self, transfer: Any) -> None:
        global VERSION
        VERSION = transfer.version

    async def resume(self) -> None:
        """Nothing stood still."""

    async def probe(self, sequences: Sequence[Any]) -> list[Any]:
        return [np.zeros(len(ids), np.float32) for ids in sequences]

    async def health(self) -> Mapping[str, Any]:
        return {}

    async def lost(self) -> Sequence[int]:
        return []

    async def restart(self, engine: int) -> None:
        raise AssertionError("there is no engine")

    async def close(self) -> None:
        """There is nothing to close."""


@dataclass
class TinySession:
    """Says nothing, in as many tokens as it was told."""

    tokens: int
    sequences: tuple[TokenSequence, ...] = ()
    truncated: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    generate_s: float = 0.0
    error: Exception | None = None

    async def chat(self, messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        sampled, ids = np.full(self.tokens, 7, np.int32), np.zeros(1, np.int32)
        turn = Turn(ids, sampled, np.zeros(self.tokens, np.float32), ((self.tokens, VERSION),), FinishReason.STOP)
        self.sequences = (TokenSequence((turn,)),)
        return Reply("", (), False, {"role": "assistant", "content": ""})

    def close(self) -> TinySession:
        return self


@dataclass
class TinyPolicy:
    config: Mapping[str, Any]
    client: Any
    opened: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    closed: bool = False

    def open(self, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
             max_turns: int | None = None) -> TinySession:
        self.opened.append(rollout_id)
        return TinySession(self.config["generator"]["tokens"])

    def release(self, rollout_id: str) -> None:
        self.released.append(rollout_id)

    async def close(self) -> None:
        self.closed = True


def create(context: Any) -> TinyGenerator:
    return TinyGenerator()


def make_client(remotes: Sequence[Any]) -> Any:
    return tuple(remotes)


def make_policy(config: Mapping[str, Any], client: Any, clock: Any) -> TinyPolicy:
    assert clock.now_utc().startswith("2000-01-01")
    MADE.append(TinyPolicy(config, client))
    return MADE[-1]


TINY = Plugin(name="tiny", role=Role.GENERATOR, summary="says nothing", config=Config, factory=f"{__name__}:create",
              client=f"{__name__}:make_client", policy=f"{__name__}:make_policy", stand_in=True,
              capabilities=Capabilities(receives=frozenset({"mock"}), refit=frozenset({"drain"}), computes="tiny"))


def planned(folder: Path) -> Plan:
    plan = make_plan(resolve("mock", cwd=folder, overrides=(
        "grpo.max_steps=2", "grpo.prompts_per_step=2", "grpo.generations_per_prompt=2", "rollout.workers=1",
        "validation.max_tasks=2", "validation.k=1", "validation.metric=off", "validation.target=off")))
    part = replace(plan.parts[Role.GENERATOR], descriptor=TINY, config=Config(tokens=5))
    return replace(plan, parts={**plan.parts, Role.GENERATOR: part}, incomparable="it says nothing")


def test_its_policy_stands_in_the_place_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody needs the policy's tokenizer or its chat template")

    monkeypatch.setattr("grpo_bench.engine.conductor.ChatFormat", read)
    monkeypatch.setattr("grpo_bench.policy.chat_format.ChatFormat.__init__", read)
    del MADE[:]
    plan = planned(tmp_path)
    run = make_folder(plan, tmp_path / "runs", datetime.now(UTC))
    outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    assert outcome.status is Status.COMPLETED, outcome.error
    rollouts = [event.data for event in read_events(run / "events.jsonl") if event.kind == Kind.ROLLOUT]
    assert rollouts and {(data["turns"], data["sampled_tokens"]) for data in rollouts} == {(1, 5)}
    policy, = MADE
    assert (policy.config, policy.client, policy.closed) == ({"generator": {"tokens": 5}}, (), True)
    assert sorted(policy.opened) == sorted(policy.released) == sorted(data["rollout_id"] for data in rollouts)
    assert json.loads((run / "profile.json").read_text())["generator"]["use"] == "mock"


@pytest.mark.parametrize("changed", [{"stand_in": False}, {"role": Role.AGENT}, {"role": Role.ENVIRONMENT}])
def test_only_a_generator_that_is_a_stand_in_may_bring_one(changed: dict[str, Any]) -> None:
    descriptor = replace(TINY, **changed)
    entry = Installed(descriptor.role.value, "tiny", "tiny-things", "1.0", "says nothing", "tiny:plugin")
    with pytest.raises(PlanError, match=r"tiny-things puts .*:make_policy in the place of the core's policy, which "
                                        r"only a generator that is a stand-in may do .*plugin tiny"):
        checked(entry, descriptor)


@pytest.mark.parametrize("policy", [f"{__name__}:VERSION", f"{__name__}:nothing"])
def test_the_kit_notices_one_that_cannot_be_made(policy: str) -> None:
    def demanded(descriptor: Plugin) -> None:
        rig = SimpleNamespace(descriptor=descriptor, play=asyncio.run)
        GeneratorSuite().test_descriptor_tells_what_the_plugin_is(rig)

    demanded(TINY)
    with pytest.raises((AssertionError, AttributeError), match=r"policy names .*:VERSION|has no attribute 'nothing'"):
        demanded(replace(TINY, policy=policy))


def test_such_a_generator_can_be_loaded() -> None:
    assert checked(Installed("generator", "tiny", "tiny-things", "1.0", "says nothing", "tiny:plugin"), TINY) is TINY
