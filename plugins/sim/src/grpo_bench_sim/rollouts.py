"""Everything of a rollout that takes time: sandbox, turns, grading.

A rollout's time and tokens are drawn when its conversation opens, from a random stream of its own, so that they do not
depend on what else runs. Its tokens are zeros, as many as were drawn. Its patch says how it will be graded, and how
long that takes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from grpo_bench.contract import (
    End, ExecResult, FinishReason, Purpose, Remote, Sampling, Score, Task, TokenSequence, Turn, WorkerContext,
)

from .config import PartConfig
from .model import Quantity, Rollouts

_NO_IDS = np.zeros(0, np.int32)
_PROMPT = np.zeros(1, np.int32)
_FIRST = ".0"
"""How the id of a group's first rollout ends."""
_MOST_TOKENS = 2**20
_ZERO_IDS = np.zeros(_MOST_TOKENS, np.int32)
_ZERO_FLOATS = np.zeros(_MOST_TOKENS, np.float32)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a rollout will take: ``sandbox`` seconds before its first turn; ``turns`` times so many seconds of decoding,
    of the environment's work and so many tokens; ``stall`` seconds after the last turn; ``score`` seconds of grading;
    and whether its patch passes."""

    sandbox: float
    turns: int
    generate: float
    environment: float
    tokens: int
    stall: float
    score: float
    passes: bool


def rollouts_of(config: PartConfig, purpose: Purpose, step: int) -> Rollouts:
    """The laws of a purpose at ``step``: the trained-on one from 1 on, the validated one from 0 on."""
    laws = config.model.train if purpose is Purpose.TRAIN else config.model.validation
    place = step - 1 if purpose is Purpose.TRAIN else step
    return laws[max(0, min(place, len(laws) - 1))]


def drawn(config: PartConfig, random: Random, purpose: Purpose, group: int, rollout_id: str, version: int) -> Drawn:
    step = group // config.prompts + 1 if purpose is Purpose.TRAIN else version
    law = rollouts_of(config, purpose, step)
    scale = config.scale(Quantity.ROLLOUT if purpose is Purpose.TRAIN else Quantity.VALIDATION)
    seconds = law.seconds.draw(random) * scale
    tokens = max(1, min(_MOST_TOKENS, round(law.tokens.draw(random))))
    stall = _stall(config, purpose, group, rollout_id, random)
    shares = law.shares
    return Drawn(seconds * shares.sandbox_start, law.turns, seconds * shares.generate / law.turns,
                 seconds * shares.environment / law.turns, max(1, round(tokens / law.turns)), stall,
                 seconds * shares.score, version >= config.passes_at)


def _stall(config: PartConfig, purpose: Purpose, group: int, rollout_id: str, random: Random) -> float:
    stalls = config.model.stalls
    seconds = 0.0
    if stalls.sudden_share and random.random() < stalls.sudden_share:
        seconds = stalls.sudden.draw(random)
    if purpose is Purpose.TRAIN and stalls.order:
        block, place = divmod(group, stalls.block)
        if place == stalls.block - 1 and rollout_id.endswith(_FIRST):
            jitter = random.gauss(0.0, stalls.spread)
            seconds += stalls.order[block % len(stalls.order)] * float(np.exp(jitter))
    return seconds * config.scale(Quantity.STALLS)


class ModelledSession:
    """One rollout's conversation; what it leaves is the record of it."""

    def __init__(self, config: PartConfig, engine: Remote, rollout_id: str, group: int, purpose: Purpose,
                 random: Random) -> None:
        self._config = config
        self._engine = engine
        self._rollout_id = rollout_id
        self._random = random
        self._group = group
        self._purpose = purpose
        self._turns: list[Turn] = []
        self.generate_s = 0.0
        self.truncated = False
        self.counters: Mapping[str, int] = {}
        self.error: Exception | None = None

    async def draw(self) -> Drawn:
        """What the rollout will take. Which weights it is for matters to validations only."""
        version = await self._engine.call("version") if self._purpose is Purpose.VALIDATION else 0
        return drawn(self._config, self._random, self._purpose, self._group, self._rollout_id, version)

    async def turn(self, seconds: float, tokens: int, environment_s: float) -> None:
        """Have a turn decoded; the environment then takes ``environment_s``."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            began, ended = await self._engine.call("turn", seconds)
        finally:
            spent = loop.time() - started
            self.generate_s += spent
        half = tokens // 2
        versions = ((tokens, ended),) if began == ended or not half else ((half, began), (tokens - half, ended))
        self._turns.append(Turn(_NO_IDS if self._turns else _PROMPT, _ZERO_IDS[:tokens], _ZERO_FLOATS[:tokens],
                                versions, FinishReason.STOP, spent, environment_s))

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        return (TokenSequence(tuple(self._turns)),) if self._turns else ()

    def close(self) -> ModelledSession:
        return self


class ModelledPolicy:
    """Opens conversations, each with an engine that chance gives it: from a stream of its own, so that a rollout draws
    the same times however many engines there are."""

    def __init__(self, config: PartConfig, engines: Sequence[Remote]) -> None:
        self._config = config
        self._engines = engines

    def open(self, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
             max_turns: int | None = None) -> ModelledSession:
        group = int(affinity.rpartition("-")[2])
        engine = self._engines[self._config.stream("engine", rollout_id).randrange(len(self._engines))]
        return ModelledSession(self._config, engine, rollout_id, group, sampling.purpose,
                               self._config.stream("rollout", rollout_id))

    def gateway(self) -> Any:
        raise RuntimeError("no program meets a modelled policy")

    def release(self, rollout_id: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """There is nothing to close."""


class ModelledAgent:
    """The contract's Agent. What its sandbox's start takes comes first, and is none of its own limit."""

    def __init__(self, config: PartConfig) -> None:
        self._timeout_s = config.timeout_s

    async def run(self, task: Task, sandbox: Any, policy: Any) -> End:
        drawn = await policy.draw()
        await asyncio.sleep(drawn.sandbox)
        async with asyncio.timeout(self._timeout_s):
            for turn in range(drawn.turns):
                last = turn == drawn.turns - 1
                outside = drawn.environment + (drawn.stall if last else 0.0)
                await policy.turn(drawn.generate, drawn.tokens, outside)
                await asyncio.sleep(outside)
        await sandbox.write("", json.dumps([drawn.passes, drawn.score]))
        return End.COMPLETED


@dataclass
class ModelledSandbox:
    """A sandbox that holds nothing but how the rollout will be graded, as JSON: whether it passes, and the seconds."""

    patch: str = ""

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        raise NotImplementedError("nothing runs in a modelled sandbox")

    async def read(self, path: str) -> str:
        raise NotImplementedError("nothing is in a modelled sandbox")

    async def write(self, path: str, text: str) -> None:
        self.patch = text

    async def diff(self) -> str:
        return self.patch

    async def close(self) -> None:
        """There is nothing to close."""


class ModelledEnvironment:
    """The contract's Environment. Sandboxes open at once: how long one takes to start is part of what its rollout
    draws, and the agent waits for it."""

    def tasks(self, split: str) -> Sequence[Task]:
        raise RuntimeError("a simulation's plan has its tasks already")

    async def start(self) -> None:
        """There is nothing to start."""

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> ModelledSandbox:
        return ModelledSandbox()

    async def score(self, task: Task, patch: str) -> Score:
        passes, seconds = json.loads(patch)
        if seconds:
            await asyncio.sleep(seconds)
        return Score(float(passes))

    async def close(self) -> None:
        """There is nothing to close."""


def create_environment(config: PartConfig, context: WorkerContext) -> ModelledEnvironment:
    """The factory inside a rollout worker."""
    return ModelledEnvironment()


def create_agent(config: PartConfig, context: WorkerContext) -> ModelledAgent:
    """The factory inside a rollout worker."""
    return ModelledAgent(config)


def make_policy(config: Mapping[str, Any], engines: Sequence[Remote], clock: Any) -> ModelledPolicy:
    """The policy inside a rollout worker."""
    return ModelledPolicy(PartConfig.model_validate(config["generator"]), engines)
