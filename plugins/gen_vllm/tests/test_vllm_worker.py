"""Who may sample when, against an engine that answers when it is told to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import (
    FinishReason, PluginError, PolicyFacts, Purpose, RefitError, Sampling, Transfer, WorkerLost,
)
from grpo_bench_gen_vllm.worker import EngineWorker

SAMPLING = Sampling(purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0,
                    presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(), max_tokens=8, max_context=64,
                    seed=0)
PLACES = 2
IDS = np.arange(1, 9, dtype=np.int32)


class Engine:
    """AsyncLLM's requests: each is answered when ``answer`` is set, or aborted."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=PLACES))
        self.answer = asyncio.Event()
        self.running: dict[str, asyncio.Event] = {}
        self.paused = False

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        aborted = self.running[request_id] = asyncio.Event()
        try:
            ends = [asyncio.ensure_future(end.wait()) for end in (self.answer, aborted)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            tokens = [] if aborted.is_set() else [5, 6]
            span = SimpleNamespace(start=0, end=2, version="1")
            yield SimpleNamespace(finished=True, outputs=[SimpleNamespace(
                token_ids=tokens, logprobs=SimpleNamespace(logprobs=[-1.0] * len(tokens), token_ids=tokens),
                finish_reason="stop" if tokens else "abort", weight_versions=[span] if tokens else [])])
        finally:
            del self.running[request_id]

    async def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].set()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert mode == "keep" and clear_cache
        self.paused = True

    async def resume_generation(self) -> None:
        self.paused = False


class Process:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.pids = engine, [1]
        self.end: WorkerLost | None = None

    async def call(self, work: Any) -> Any:
        """As the real one, which hears of a result only after others had a turn."""
        await self.check()
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
            return task.result()
        finally:
            task.cancel()

    async def check(self) -> None:
        if self.end is not None:
            raise self.end


class Updates:
    failure: Exception | None = None

    async def take(self, transfer: Transfer) -> None:
        if self.failure is not None:
            raise self.failure


class Made:
    def __init__(self) -> None:
        self.engine, self.updates = Engine(), Updates()
        self.process = Process(self.engine)
        config = {"policy": PolicyFacts(Path("policy"), 64, 100), "temperature": 1.0, "sampling": (SAMPLING,)}
        self.worker = EngineWorker(self.process, self.updates, config)  # type: ignore[arg-type]

    def ask(self, name: str, ids: Any = IDS) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.worker.generate(name, ids, SAMPLING, f"{name}/0"))

    async def refit(self, version: int = 1) -> None:
        await self.worker.pause("drain")
        await self.worker.receive(Transfer(version, "safetensors", "", (), 1024, 1.0))
        await self.worker.resume()


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of vLLM that a request is made with."""
    modules: dict[str, Any] = {
        "vllm": SimpleNamespace(SamplingParams=lambda **given: SimpleNamespace(**given)),
        "vllm.inputs.engine": SimpleNamespace(tokens_input=lambda ids: {"prompt_token_ids": ids}),
        "vllm.sampling_params": SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def play(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_wait_for_weights_and_for_places():
    async def body() -> None:
        made = Made()
        with pytest.raises(PluginError, match="no weights yet"):
            await made.ask("early")
        await made.worker.pause("drain")
        tasks = [made.ask(f"r{number}") for number in range(PLACES + 2)]
        await settle()
        assert not made.engine.running
        await made.refit()
        await settle()
        assert len(made.engine.running) == PLACES
        assert ((await made.worker.health())["running"], (await made.worker.health())["queued"]) == (PLACES, 2)
        made.engine.answer.set()
        assert [sample.versions for sample in await asyncio.gather(*tasks)] == [((2, 1),)] * len(tasks)
        assert (await made.worker.health())["sampled_tokens"] == 2 * len(tasks)

    play(body())


def test_drain_ends_what_runs_and_keep_leaves_it():
    async def body() -> None:
        made = Made()
        await made.refit()
        running = made.ask("a")
        await settle()
        draining = asyncio.ensure_future(made.worker.pause("drain"))
        await settle()
        assert not draining.done() and not made.engine.paused
        made.engine.answer.set()
        await draining
        assert running.done() and made.engine.paused
        made.engine.answer.clear()
        await made.worker.resume()
        kept = made.ask("b")
        await settle()
        await made.worker.pause("keep")
        late = made.ask("c")
        await settle()
        assert made.engine.paused and list(made.engine.running) == ["b"] and not late.done()
        await made.worker.resume()
        made.engine.answer.set()
        await asyncio.gather(kept, late)

    play(body())


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_a_drain_overlooks_no_request_that_was_let_in(steps):
    async def body() -> None:
        made = Made()
        await made.refit()
        request = made.ask("a")
        for _ in range(steps):
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(made.worker.pause("drain"))
        await settle()
        assert draining.done() == (not made.engine.running)
        made.engine.answer.set()
        await draining
        assert not made.engine.running
        await made.worker.resume()
        await request

    play(body())


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_an_abort_finds_a_request_wherever_it_is(steps):
    async def body() -> None:
        made = Made()
        await made.refit()
        await made.worker.pause("keep")
        task = made.ask("a")
        await settle()
        await made.worker.resume()
        for _ in range(steps):
            await asyncio.sleep(0)
        await made.worker.abort("a")
        assert (await task).finish is FinishReason.ABORT
        others = [made.ask(f"b{number}") for number in range(PLACES)]
        await settle()
        assert len(made.engine.running) == PLACES
        made.engine.answer.set()
        await asyncio.gather(*others)

    play(body())


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_a_cancelled_request_gives_its_place_back(steps):
    async def body() -> None:
        made = Made()
        await made.refit()
        for number in range(3 * PLACES):
            task = made.ask(f"a{number}")
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await settle()
        others = [made.ask(f"b{number}") for number in range(PLACES)]
        await settle()
        assert len(made.engine.running) == PLACES and (await made.worker.health())["queued"] == 0
        made.engine.answer.set()
        await asyncio.gather(*others)

    play(body())


@pytest.mark.parametrize(("failure", "message"), [
    (RefitError("bytes arrived changed"), "bytes arrived changed"), (ValueError("no such tensor"), "no such tensor"),
    (PluginError("the sender is gone"), "did not arrive: the sender is gone"),
])
def test_a_failed_change_leaves_no_version(failure, message):
    async def body() -> None:
        made = Made()
        await made.refit()
        made.updates.failure = failure
        with pytest.raises(RefitError, match=message):
            await made.refit(2)
        assert (await made.worker.health())["version"] is None
        for work in (made.worker.resume(), made.worker.probe([IDS])):
            with pytest.raises(RefitError, match="has no weights"):
                await work
        waiting = made.ask("a")
        await settle()
        assert not made.engine.running
        made.updates.failure = None
        await made.refit(3)
        made.engine.answer.set()
        await waiting

    play(body())


def test_weights_do_not_change_under_running_requests():
    async def body() -> None:
        made = Made()
        await made.refit()
        running = made.ask("a")
        await settle()
        with pytest.raises(RefitError, match="while requests are running"):
            await made.worker.receive(Transfer(2, "safetensors", "", (), 1024, 1.0))
        made.engine.answer.set()
        await running

    play(body())


def test_what_cannot_be_served_is_refused():
    async def body() -> None:
        made = Made()
        await made.refit()
        for ids, message in ((np.ones(64, np.int32), "no room"), (np.zeros(0, np.int32), "no room"),
                             (np.array([100], np.int32), "vocabulary"), (np.array([-1], np.int32), "vocabulary")):
            with pytest.raises(PluginError, match=message):
                await made.ask("a", ids)
        first = made.ask("b")
        await settle()
        with pytest.raises(PluginError, match="running already"):
            await made.ask("b")
        made.engine.answer.set()
        await first
        made.process.end = WorkerLost("the engine's process ended")
        for work in (made.ask("c"), made.worker.health()):
            with pytest.raises(WorkerLost, match="ended"):
                await work

    play(body())
