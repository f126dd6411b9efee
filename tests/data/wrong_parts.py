"""Parts that do right, but for the one thing that their option ``wrong`` names. Most are made of the mock's."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpo_bench_mock
import numpy as np
from grpo_bench_mock import learner, machine, rules, sampler, solver, world

from grpo_bench.contract import (
    End, Event, Finding, LaunchForm, Need, Pace, Placement, Plugin, Role, Sample, Score, Settings, Task, hookimpl,
)
from grpo_bench.steps.transport import receive_tensors


def descriptor(role: str, model: type[Any], **more: Any) -> Plugin:
    known = getattr(grpo_bench_mock, role)
    factory = f"{__name__}:make_{role}" if known.factory else ""
    return replace(known, name="wrong", config=model, factory=factory, known_failures={}, **more)


class EnvironmentConfig(grpo_bench_mock.environment.config):
    wrong: str = ""


class WrongSandbox(world.MockSandbox):
    everything: dict[str, str] = {}
    closed = False

    async def read(self, path: str) -> str:
        files = self.everything if self._config.wrong == "shared" else self._files
        return files[path] if path in files else await super().read(path)

    async def write(self, path: str, text: str) -> None:
        self.everything[path] = text
        await super().write(path, text)

    async def diff(self) -> str:
        if self._config.wrong == "own_format":
            return "".join(f"{path}: {text}" for path, text in self._files.items() if text != world.START)
        return "" if self._config.wrong == "no_diff" else await super().diff()

    async def close(self) -> None:
        if self.closed and self._config.wrong == "once":
            raise RuntimeError("closed already")
        if not self.closed:
            WrongEnvironment.places.release()
        self.closed = True


class WrongEnvironment(world.MockEnvironment):
    places = asyncio.Semaphore(8)

    async def start(self) -> None:
        WrongEnvironment.places = asyncio.Semaphore(8)

    def tasks(self, split: str) -> Sequence[Task]:
        wrong = self._config.wrong
        if wrong == "more_splits" and split == "no-such-split":
            return super().tasks("train")
        return [self._spoilt(task, wrong) for task in super().tasks(split)]

    def _spoilt(self, task: Task, wrong: str) -> Task:
        secret = "assert f(1) == 2, 'the answer is right, and this is hidden'"
        if wrong == "unstable":
            return replace(task, fingerprint=str(random.random()))
        if wrong == "twins":
            return replace(task, id=task.id[-4:])
        if wrong == "named":
            return replace(task, fingerprint=hashlib.sha256(task.id.encode()).hexdigest()[:16])
        if wrong == "leak":
            prompt = {**task.prompt, "statement": f"{task.prompt['statement']} {secret}"}
            return replace(task, payload={**task.payload, "tests": secret}, prompt=prompt)
        if wrong == "bare":
            return replace(task, prompt={"statement": task.prompt["statement"]})
        return task

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> Any:
        if self._config.wrong == "hangs":
            await asyncio.Event().wait()
        await self.places.acquire()
        WrongSandbox.everything.clear()
        return WrongSandbox(task, self._config, self._faults)

    async def score(self, task: Task, patch: str) -> Score:
        wrong = self._config.wrong
        if wrong == "picky" and patch and not patch.startswith("---"):
            raise ValueError("no patch")
        if wrong == "ungraded" or (wrong == "own_format" and patch):
            return Score(None, detail="it does not apply")
        if wrong == "peeks" and "conftest.py" in WrongSandbox.everything:
            return Score(1.0)
        return await super().score(task, patch)


environment = descriptor("environment", EnvironmentConfig, worker_factory=f"{__name__}:make_environment")


def make_environment(config: Any, context: Any = None) -> WrongEnvironment:
    WrongSandbox.everything.clear()
    return WrongEnvironment(config if context is not None else config.config)


class TrainerConfig(grpo_bench_mock.trainer.config):
    wrong: str = ""


class WrongTrainer(learner.MockTrainer):
    @property
    def _wrong(self) -> str:
        return self._config.wrong

    async def log_probabilities(self, batch: Any, weights: Any) -> Any:
        values = await super().log_probabilities(batch, "current" if self._wrong == "moving_reference" else weights)
        if self._wrong == "nan":
            values[-1] = np.nan
        if self._wrong == "neighbours":
            values = values * np.float32(1 + 0.01 * batch.rows)
        return values

    async def update(self, batch: Any) -> Any:
        before = self._weights
        if self._wrong == "own_counts":
            batch = replace(batch, n_tokens=float(batch.token_mask.sum()))
        if self._wrong == "unmasked":
            batch = replace(batch, sample_mask=np.ones_like(batch.sample_mask))
        stats = await super().update(batch)
        if self._wrong == "backwards":
            self._weights = 2 * before - self._weights
        if self._wrong == "idle":
            self._weights = before
        if self._wrong == "random":
            self._weights = self._weights + random.random()
        return replace(stats, ended_at="2030-01-01T00:00:00+02:00") if self._wrong == "local_time" else stats

    def tensors(self) -> Any:
        return super().tensors()[::-1] if self._wrong == "misordered" else super().tensors()

    async def send(self, transfer: Any) -> int:
        return await super().send(replace(transfer, tensors=super().tensors()))

    async def save(self, folder: Path, what: Any) -> None:
        await super().save(folder, what)
        if self._wrong == "no_tokenizer":
            (folder / "tokenizer.json").unlink()

    async def load(self, folder: Path) -> None:
        before = self._weights
        await super().load(folder)
        if self._wrong == "forgetful":
            self._weights = before

    async def weights_sha256(self) -> str:
        return str(random.random()) if self._wrong == "random_hash" else await super().weights_sha256()


trainer = descriptor("trainer", TrainerConfig)


def make_trainer(context: Any) -> WrongTrainer:
    return WrongTrainer(context)


class GeneratorConfig(grpo_bench_mock.generator.config):
    wrong: str = ""


class WrongGenerator(sampler.MockGenerator):
    def __init__(self, context: Any) -> None:
        known = context.config.model_dump(mode="json", exclude={"wrong"})
        super().__init__(replace(context, config=grpo_bench_mock.generator.config.model_validate(known)))
        WrongClient.wrong, WrongClient.allowed = context.config.wrong, next(iter(context.shared["sampling"].values()))

    async def pause(self, mode: Any) -> None:
        if WrongClient.wrong != "never_pauses":
            await super().pause(mode)

    async def receive(self, transfer: Any) -> None:
        if WrongClient.wrong == "patient" and transfer.deadline_s < 1:
            await asyncio.Event().wait()
        if WrongClient.wrong == "keeps_weights" and transfer.version:
            async for _ in receive_tensors(transfer, 0):
                pass
        elif WrongClient.wrong != "takes_nothing" or transfer.version == 0:
            await super().receive(transfer)


class WrongClient(sampler.MockClient):
    wrong = ""
    allowed: Any = None
    asked = 0

    async def generate(self, request_id: str, ids: Any, sampling: Any, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        wrong = self.wrong
        if wrong == "random":
            stream = str(random.random())
        if wrong == "one_stream":
            stream = "always"
        if wrong == "lenient":
            sampling = self.allowed
        if wrong == "long":
            sampling = replace(sampling, max_tokens=sampling.max_tokens + 1)
        sample = await super().generate(request_id, ids, sampling, stream=stream, affinity=affinity,
                                        deadline_s=1e6 if wrong == "patient" else deadline_s)
        self.asked += 1
        if wrong == "crowded" and self.asked > 1:
            return replace(sample, log_probabilities=sample.log_probabilities * np.float32(1 + 1e-6))
        if wrong == "next_version":
            return replace(sample, versions=tuple((count, version + 1) for count, version in sample.versions))
        return replace(sample, log_probabilities=sample.log_probabilities - 0.5) if wrong == "shifted" else sample


generator = descriptor("generator", GeneratorConfig, client=f"{__name__}:make_client")


def make_generator(context: Any) -> WrongGenerator:
    return WrongGenerator(context)


def make_client(remotes: Any) -> WrongClient:
    return WrongClient(remotes)


class AgentConfig(grpo_bench_mock.agent.config):
    wrong: str = ""


class Spoiled:
    """A policy as a wrong agent asks it; ``heard`` is what the agent keeps of all its rollouts."""

    def __init__(self, policy: Any, wrong: str, task: Task, heard: list[Any]) -> None:
        self._policy, self._wrong, self._task, self._heard = policy, wrong, task, heard

    async def chat(self, messages: Any, tools: Any) -> Any:
        if self._wrong == "shows_how":
            messages = [*messages[:1], *EXAMPLE, *messages[1:]]
        if self._wrong == "silent":
            messages = [item for item in messages if item["role"] != "tool"]
        if self._wrong == "one_id":
            messages = [{**item, "tool_call_id": "call_0_0"} if item["role"] == "tool" else item for item in messages]
        if self._wrong == "remembers":
            messages = [*self._heard, *messages]
        if self._wrong == "learns":
            messages = [*messages, {"role": "user", "content": f"Lesson {len(self._heard)}."}]
        if self._wrong == "leaks":
            messages = [*messages, {"role": "user", "content": str(self._task.payload)}]
        if self._wrong == "mute":
            messages = [{"role": "user", "content": "Go on."}]
        if self._wrong == "edits":
            messages = [{**item, "content": "..."} if item["role"] == "assistant" else item for item in messages]
        try:
            reply = await self._policy.chat(messages, tools)
        except asyncio.CancelledError:
            if self._wrong != "deaf":
                raise
            return await self._policy.chat(messages, tools)
        self._heard.append({"role": "user", "content": reply.text})
        if self._wrong == "strict":
            names = {tool["function"]["name"] for tool in tools}
            assert all(call.name in names for call in reply.tool_calls), "no such tool"
        return reply


EXAMPLE = ({"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Four."})


class WrongAgent(solver.MockAgent):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._heard: list[Any] = []

    async def run(self, task: Task, sandbox: Any, policy: Any) -> End:
        wrong = self._config.wrong
        while True:
            end = await super().run(task, sandbox, Spoiled(policy, wrong, task, self._heard))
            if wrong != "endless":
                return End.FAILED if wrong == "fails" else end


agent = descriptor("agent", AgentConfig, worker_factory=f"{__name__}:make_agent")


def make_agent(config: Any, context: Any) -> WrongAgent:
    return WrongAgent(config)


class HardwareConfig(grpo_bench_mock.hardware.config):
    wrong: str = ""


class WrongHardware(machine.MockHardware):
    _asked: Mapping[str, Need] | None = None

    def describe(self) -> Mapping[str, Any]:
        wrong = self._config.wrong
        if wrong == "crashes":
            import ctypes
            ctypes.string_at(0)
        if wrong == "blocks":
            import threading
            threading.Event().wait()
        return {**super().describe(), **({"set": {1, 2}} if wrong == "odd_facts" else {})}

    def form(self) -> LaunchForm:
        return LaunchForm()

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        wrong = self._config.wrong
        placed = dict(super().place(needs))
        if wrong == "ends_last" and needs == self._asked:
            os._exit(0)
        self._asked = needs
        if wrong == "full" and max(need.workers for need in needs.values()) > 2:
            raise ValueError("there is room for 2 workers")
        if wrong == "none":
            return {role: replace(place, workers=needs[role].workers) for role, place in placed.items()}
        if wrong == "forgets":
            placed.pop("rollout", None)
        if wrong == "knows_better":
            return {role: replace(place, workers=1) for role, place in placed.items()}
        return placed


hardware = descriptor("hardware", HardwareConfig)


def make_hardware(context: Any) -> WrongHardware:
    return WrongHardware(context.config)


class RulesetConfig(grpo_bench_mock.ruleset.config):
    wrong: str = ""


class WrongRuleset(rules.MockRuleset):
    def check(self, profile: Any) -> Sequence[Finding]:
        if self._config.wrong == "raises":
            assert profile["grpo"]["max_steps"] > 1, "only one step"
        profile["seen"] = True
        return super().check(profile)

    def should_validate(self, step: int, max_steps: int) -> Any:
        found = super().should_validate(step, max_steps)
        return int(found) if self._config.wrong == "numbers" else found

    def met(self, report: Any) -> bool:
        return super().met(report) != (self._config.wrong == "contrary")

    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        if self._config.wrong == "raises":
            assert events[-1].kind == "run_ended", "no end"
        return super().check_run(folder, events)


def pace(profile: Any) -> Pace:
    step = (2.0, 1.0) if profile["ruleset"]["wrong"] == "backwards" else (1.0, 2.0)
    return Pace((0.0, 0.0), (1.0, 1.0), step, (0.0, 0.0), (0.0, 0.0), 0.0, "nowhere")


ruleset = replace(descriptor("ruleset", RulesetConfig), pace="wrong_parts:pace",
                  known_failures={"test_checking_changes_nothing": "for show"})


def make_ruleset(context: Any) -> WrongRuleset:
    if context.config.wrong == "timed":
        context.clock.monotonic()
    return WrongRuleset(context.config)


class ObserverConfig(Settings):
    wrong: str = ""


class Counter:
    """Counts events by kind."""

    def __init__(self, context: Any) -> None:
        self._folder, self._wrong = context.run_folder, context.config.wrong
        self._counts: dict[str, int] = {}

    @hookimpl
    def run_started(self, run: Any) -> None:
        assert not (self._wrong == "starts_once" and run.history), "it has begun before"
        self._next = len(run.history)

    @hookimpl
    def event(self, event: Event) -> None:
        if self._wrong == "counts_on":
            assert event.seq >= self._next, f"event {event.seq} after {self._next} others"
        assert self._wrong != "knows_all" or "later" not in event.kind, "of a later version"
        if self._wrong == "alters":
            event.data.pop("phase", None)  # type: ignore[attr-defined]
        self._counts[event.kind] = self._counts.get(event.kind, 0) + 1

    @hookimpl
    def run_ended(self, summary: Any) -> None:
        folders = {"litters": Path(), "settles": Path.home(), "leaves": Path(tempfile.gettempdir())}
        (folders.get(self._wrong, self._folder) / "counts.txt").write_text(str(self._counts))

    @hookimpl
    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        known = self._counts["run_started"] if self._wrong == "witnesses" else (folder / "counts.txt").exists()
        return [Finding("counts", bool(known), "whether they are there")]


class Misspelt:
    @hookimpl
    def run_has_ended(self, summary: Any) -> None:
        """Never called."""


observer = Plugin(name="wrong", role=Role.OBSERVER, summary="counts", config=ObserverConfig,
                  factory=f"{__name__}:make_observer")


def make_observer(context: Any) -> Any:
    return Misspelt() if context.config.wrong == "misspelt" else Counter(context)
