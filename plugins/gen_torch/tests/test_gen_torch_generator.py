"""The whole generator over an inline fabric: controller, engine workers and clients."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import (
    FinishReason, LimitSettings, Placement, PluginContext, PluginError, PolicyFacts, Purpose, RefitError, TensorSpec,
    Transfer,
)
from grpo_bench.fabric import InlineFabric
from grpo_bench.steps.transport import send_tensors
from grpo_bench_gen_torch import TorchGeneratorConfig, plugin
from grpo_bench_gen_torch.client import make as make_client
from grpo_bench_gen_torch.controller import make
from grpo_bench_model_qwen3 import hf_views, save

CLOCK: Any = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())


@asynccontextmanager
async def generator(model, folder: Path, sampling, **config):
    """A started generator, its client, and a function that refits it to the model's weights."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        save(model, checkpoint, "float32")
    log = logging.getLogger("test")
    fabric = InlineFabric(CLOCK, log, serialise=True)
    made = make(PluginContext(
        config=TorchGeneratorConfig(**{"workers": 2, "gather_s": 0.0, **config}), fabric=fabric, placement=Placement(),
        run_folder=folder, policy=PolicyFacts(checkpoint, 200, model.config.vocab_size), seed=0, deterministic=True,
        clock=CLOCK, logger=log, shared={"sampling": {Purpose.TRAIN: sampling}, "limits": LimitSettings()}))
    await made.start()
    client = make_client([await fabric.connect(address) for address in made.addresses()])
    try:
        yield made, client
    finally:
        await made.close()
        await fabric.close()


async def refit(made, model, folder, version, *, leave_out=(), shape=None):
    views = hf_views(model)
    specs = tuple(TensorSpec(name, shape or tuple(view.shape), "float32") for name, view in views.items()
                  if name not in leave_out)
    where = folder / f"refit-{version}"
    where.mkdir()
    transfer = Transfer(version, "safetensors", str(where), specs, 1 << 16, 5.0, len(made.addresses()))
    sending = send_tensors(transfer, lambda spec: bytes(12) if shape else views[spec.name].numpy().tobytes())
    await asyncio.gather(made.receive(transfer), sending)


async def ask(client, prompts, sampling, prefix=""):
    return await asyncio.gather(*(
        request(client, f"{prefix}{index}", prompt, sampling, affinity=f"group-{index // 4}")
        for index, prompt in enumerate(prompts)))


def request(client, name, prompt, sampling, *, affinity="g", deadline_s=300.0):
    return client.generate(name, prompt, sampling, stream=f"{name}/0", affinity=affinity, deadline_s=deadline_s)


async def until(made, reached):
    async with asyncio.timeout(60):
        while True:
            if reached((await made.health())["engines"]):
                return
            await asyncio.sleep(0)


def test_descriptor_names_what_exists():
    for target in (plugin.factory, str(plugin.client)):
        module, _, function = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_samples_come_with_the_version_and_agree_with_the_probe(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, client):
            await refit(made, model, tmp_path, 3)
            await made.resume()
            answers = await ask(client, prompts, sampling)
            probed = await made.probe([np.concatenate((prompts[0], answers[0].ids))])
            return answers, probed, await made.health()

    answers, (probed,), health = asyncio.run(play())
    assert all(answer.versions == ((len(answer.ids), 3),) for answer in answers)
    assert probed[len(prompts[0]):] == pytest.approx(answers[0].log_probabilities, abs=1e-5)
    assert sum(engine["sampled_tokens"] for engine in health["engines"]) == sum(len(answer.ids) for answer in answers)
    assert all(engine["sampled_tokens"] for engine in health["engines"])


def test_a_folder_in_hf_form_is_a_sender(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, client):
            await refit(made, model, tmp_path, 0)
            await made.resume()
            first = await ask(client, prompts[:2], sampling)
            await made.receive(Transfer(1, "hf_folder", str(tmp_path / "checkpoint"), (), 1 << 20, 5.0))
            return first, await ask(client, prompts[:2], sampling)

    first, second = asyncio.run(play())
    assert all(np.array_equal(a.log_probabilities, b.log_probabilities) for a, b in zip(first, second, strict=True))
    assert second[0].versions[0][1] == 1


@pytest.mark.parametrize(("change", "message"), [
    ({"leave_out": ("model.norm.weight",)}, "model.norm.weight"), ({"shape": (3,)}, "has shape"),
])
def test_weights_that_do_not_fit_are_refused_and_nothing_is_sampled(model, sampling, tmp_path, change, message):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, _):
            await refit(made, model, tmp_path, 0)
            with pytest.raises(RefitError, match=message):
                await refit(made, model, tmp_path, 1, **change)
            with pytest.raises(RefitError, match="has no weights"):
                await made.resume()

    asyncio.run(play())


def test_nothing_is_sampled_before_the_first_weights(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (_, client):
            with pytest.raises(PluginError, match="no weights yet"):
                await request(client, "a", prompts[0], sampling)

    asyncio.run(play())


def test_draining_finishes_running_requests_and_admits_no_other(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, client):
            await refit(made, model, tmp_path, 0)
            await made.resume()
            running = asyncio.create_task(ask(client, prompts, sampling))
            await until(made, lambda engines: any(engine["running"] for engine in engines))
            draining = asyncio.create_task(made.pause("drain"))
            await asyncio.sleep(0)
            late = asyncio.create_task(request(client, "late", prompts[0], sampling))
            await draining
            held = not late.done()
            await refit(made, model, tmp_path, 1)
            await made.resume()
            return await running, held, await late

    running, held, late = asyncio.run(play())
    assert held
    assert late.versions[0][1] == 1
    assert {version for answer in running for _, version in answer.versions} <= {0, 1}
    assert all(len(answer.versions) == 1 for answer in running)


def test_kept_requests_go_on_under_the_new_weights(model, prompts, sampling, tmp_path):
    endless = replace(sampling, stop_token_ids=())

    async def play():
        async with generator(model, tmp_path, endless) as (made, client):
            await refit(made, model, tmp_path, 0)
            await made.resume()
            running = asyncio.create_task(ask(client, prompts[:1], endless))
            await until(made, lambda engines: sum(engine["sampled_tokens"] for engine in engines) > 3)
            await made.pause("keep")
            await refit(made, model, tmp_path, 1)
            await made.resume()
            return await running

    (answer,) = asyncio.run(play())
    assert [version for _, version in answer.versions] == [0, 1]
    assert sum(count for count, _ in answer.versions) == len(answer.ids) == endless.max_tokens


def test_a_cancelled_request_leaves_no_trace(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, client):
            await refit(made, model, tmp_path, 0)
            await made.resume()
            task = asyncio.create_task(request(client, "a", prompts[0], sampling))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.abort("a")
            return await made.health()

    assert all(engine["running"] == engine["queued"] == 0 for engine in asyncio.run(play())["engines"])


def test_an_aborted_request_answers_with_what_it_has(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (made, client):
            await made.pause("keep")
            task = asyncio.create_task(request(client, "a", prompts[0], sampling))
            await asyncio.sleep(0.01)
            await client.abort("a")
            return await task

    answer = asyncio.run(play())
    assert answer.finish is FinishReason.ABORT
    assert not len(answer.ids)


def test_only_the_two_sampling_profiles_are_accepted(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling) as (_, client):
            with pytest.raises(PluginError, match="neither the training nor the validation"):
                await ask(client, prompts[:1], replace(sampling, temperature=0.9))

    asyncio.run(play())


async def conversation(client, name, prompt, sampling, turns, busy):
    """Replies to ``turns`` prompts that extend each other, with ``busy(turn)`` between them, and the release."""
    ids = prompt
    for turn in range(turns):
        reply = await client.generate(f"{name}/{turn}", ids, sampling, stream=f"{name}/{turn}", affinity="g",
                                      deadline_s=60)
        ids = np.concatenate((ids, reply.ids, prompt[:3]))
        await busy(turn)
    await client.release(name)
    return ids


def steps_of_conversations(model, prompts, sampling, folder, gather_s):
    """Batch steps, and the conversations, of eight rollouts whose sandboxes answer one after another, each in as long
    as the engine takes for a reply on a machine as busy as this."""
    sandbox = asyncio.Semaphore(1)

    async def play():
        async with generator(model, folder, sampling, workers=1, gather_s=gather_s) as (made, client):
            await refit(made, model, folder, 0)
            await made.resume()
            await alone(client, "first")
            took_s = await alone(client, "second")

            async def busy(turn):
                async with sandbox:
                    await asyncio.sleep(max(0.03, took_s))

            before = await steps(made)
            texts = await asyncio.gather(*(conversation(client, f"r{index}", prompts[0], sampling, 3, busy)
                                           for index in range(8)))
            return await steps(made) - before, [text.tolist() for text in texts]

    async def alone(client, name):
        async def nothing(turn):
            pass

        begin = asyncio.get_running_loop().time()
        await conversation(client, name, prompts[0], sampling, 1, nothing)
        return asyncio.get_running_loop().time() - begin

    async def steps(made):
        return (await made.health())["engines"][0]["steps"]

    return asyncio.run(play())


def test_rollouts_that_are_away_are_waited_for_so_that_fewer_batch_steps_do_and_tokens_stay_the_same(
        model, prompts, sampling, tmp_path):
    (tmp_path / "waves").mkdir()
    (tmp_path / "eager").mkdir()
    waves, texts = steps_of_conversations(model, prompts, sampling, tmp_path / "waves", 10.0)
    eager, same = steps_of_conversations(model, prompts, sampling, tmp_path / "eager", 0.0)
    assert texts == same
    assert 3 * waves < 2 * eager


def test_a_rollout_that_never_comes_back_holds_the_others_up_for_a_moment_only(model, prompts, sampling, tmp_path):
    async def play():
        async with generator(model, tmp_path, sampling, workers=1, gather_s=0.05) as (made, client):
            await refit(made, model, tmp_path, 0)
            await made.resume()
            await ask(client, prompts[:3], sampling)
            return await conversation(client, "late", prompts[0], sampling, 2, lambda turn: asyncio.sleep(0))

    assert len(asyncio.run(asyncio.wait_for(play(), 60))) > len(prompts[0])
