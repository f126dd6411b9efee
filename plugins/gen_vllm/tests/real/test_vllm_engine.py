"""One real engine: what is sampled is what the weights say, whatever happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_bench.contract import FinishReason, PluginError, RefitError, Transfer
from grpo_bench_model_qwen3 import hf_views, save

from .running import BASE, BOUND, CONTEXT, SAMPLING, Running, apart, both, broadcast, expected, policy, prompts

pytestmark = pytest.mark.real("vllm")

LONG = replace(SAMPLING, max_tokens=200)
SHORT = replace(SAMPLING, max_tokens=8)
"""A request that comes after a long one and ends before it: by then the long one is under way, on any machine."""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, environment_python) -> Iterator[Running]:
    """An engine for all tests here, since each start takes as long as all of them."""
    with Running(tmp_path_factory.mktemp("one"), environment_python("vllm"), workers=1) as running:
        yield running


def test_before_the_first_weights_nothing_is_sampled(one: Running):
    async def play() -> None:
        with pytest.raises(RefitError, match="has no weights"):
            await one.generator.resume()
        with pytest.raises(PluginError, match="no weights yet"):
            await one.ask(prompts(20)[0])
        await one.generator.pause("drain")
        waiting = asyncio.ensure_future(one.ask(prompts(20)[0]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await one.refit(policy(), 0)
        assert (await waiting).versions == ((SAMPLING.max_tokens, 0),)

    one.play(play())


def test_samples_and_probe_are_those_of_the_weights(one: Running):
    asked = prompts(40, 23, 150, 1)

    async def play() -> None:
        for version, seed in ((1, 1), (2, 2), (3, 0)):
            model = policy(seed)
            await one.refit(model, version)
            sequences = [*asked, prompts(2)[0], prompts(CONTEXT)[0]]
            for ids, values in zip(sequences, await one.generator.probe(sequences), strict=True):
                assert values.shape == ids.shape and values[0] == 0
                assert np.abs(values[1:] - expected(model, ids)).max(initial=0.0) <= BOUND
            for ids, sample in zip(asked, await one.ask_all(asked), strict=True):
                assert sample.versions == ((SAMPLING.max_tokens, version),)
                assert sample.finish is FinishReason.LENGTH
                assert apart(model, ids, sample) <= BOUND

    one.play(play())


@pytest.mark.parametrize("part", ["mlp.experts", "embed_tokens", "self_attn", "mlp.gate"])
def test_a_change_of_one_part_arrives(one: Running, part: str):
    """Experts and the tied output matrix have packed copies on CPU that vLLM alone would leave as they were."""
    model, ids = policy(4, part), prompts(60)[0]

    async def play() -> np.ndarray:
        await one.refit(policy(), 4)
        before, = await one.generator.probe([ids])
        await one.refit(model, 5)
        after, = await one.generator.probe([ids])
        assert np.abs(after - before).max() > 100 * BOUND
        return after

    assert np.abs(one.play(play())[1:] - expected(model, ids)).max() <= BOUND


def test_cached_prefixes_end_with_their_weights(one: Running):
    model, ids = policy(6), prompts(300, seed=3)[0]

    async def play() -> None:
        await one.refit(policy(), 6)
        await one.ask(ids)
        await one.refit(model, 7)
        sample = await one.ask(ids)
        assert apart(model, ids, sample) <= BOUND

    one.play(play())


def test_a_kept_request_goes_on_under_the_new_weights(one: Running):
    old, new, ids = policy(), policy(8), prompts(50, seed=1)[0]

    async def play() -> None:
        await one.refit(old, 8)
        running = asyncio.ensure_future(one.ask(ids, sampling=LONG))
        await one.ask(prompts(20)[0], sampling=SHORT)
        await one.generator.pause("keep")
        late = asyncio.ensure_future(one.ask(ids, "late/0"))
        await one.hand_over(new, 9)
        await one.generator.probe(prompts(30))
        assert not late.done()
        await one.generator.resume()
        sample = await running
        (first, was), (second, now) = sample.versions
        assert (was, now) == (8, 9) and first + second == LONG.max_tokens
        assert apart(old, ids, sample, slice(0, first)) <= BOUND
        assert apart(new, ids, sample, slice(first, None)) <= BOUND
        assert apart(old, ids, sample, slice(first, None)) > BOUND
        assert {version for _, version in (await late).versions} == {9}

    one.play(play())


def test_prompts_that_are_spread_over_steps_are_answered(one: Running):
    """Together they are more than one step's tokens."""
    asked = prompts(*[400] * 12)

    async def play() -> None:
        await one.refit(policy(), 7)
        for ids, sample in zip(asked, await one.ask_all(asked), strict=True):
            assert len(sample.ids) == SAMPLING.max_tokens and apart(policy(), ids, sample) <= BOUND

    one.play(play())


def test_draining_waits_for_what_runs(one: Running):
    async def play() -> None:
        await one.refit(policy(), 10)
        running = asyncio.ensure_future(one.ask(prompts(50)[0], sampling=LONG))
        await one.ask(prompts(20)[0], sampling=SHORT)
        await one.refit(policy(1), 11)
        assert running.done()
        assert (await running).versions == ((LONG.max_tokens, 10),)

    one.play(play())


@pytest.mark.parametrize("lacking", ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight",
                                     "model.layers.1.mlp.experts.3.down_proj.weight", "model.embed_tokens.weight"])
def test_weights_that_lack_a_tensor_are_refused(one: Running, lacking: str):
    async def play() -> None:
        model, ids = policy(), prompts(40)[0]
        assert lacking in hf_views(model)
        await one.generator.pause("drain")
        with pytest.raises(RefitError, match="no or not all weights came for"):
            await one.hand_over(policy(2), 12, leave_out=[lacking])
        with pytest.raises(RefitError, match="has no weights"):
            await one.generator.resume()
        await one.hand_over(model, 13)
        await one.generator.resume()
        assert apart(model, ids, await one.ask(ids)) <= BOUND

    one.play(play())


def test_a_sender_that_stops_half_way_leaves_no_version(one: Running):
    async def play() -> None:
        await one.generator.pause("drain")
        transfer = replace(one.transfer(policy(), 14), deadline_s=0.5)
        with pytest.raises(Exception, match="took longer than"):
            await one.generator.receive(transfer)
        with pytest.raises(RefitError, match="has no weights"):
            await one.generator.probe(prompts(5))
        await one.refit(policy(), 15)

    one.play(play())


def test_a_folder_in_hf_form_is_a_sender(one: Running, tmp_path):
    model, ids = policy(16), prompts(40)[0]
    save(model, tmp_path / "hf", "float32", source=BASE)

    async def play() -> None:
        await one.generator.pause("drain")
        await one.generator.receive(Transfer(16, "hf_folder", str(tmp_path / "hf"), (), 1 << 20, 60.0))
        await one.generator.resume()
        assert apart(model, ids, await one.ask(ids)) <= BOUND

    one.play(play())


def test_a_broadcast_arrives(one: Running):
    """Between GPUs this is NCCL; here the same life cycle over gloo."""
    model, ids = policy(20), prompts(40)[0]

    async def play() -> None:
        await one.generator.pause("drain")
        transfer = one.transfer(model, 20, transport="broadcast")
        await both(one.generator.receive(transfer), asyncio.to_thread(broadcast, transfer, model))
        await one.generator.resume()
        sample = await one.ask(ids)
        assert sample.versions == ((SAMPLING.max_tokens, 20),)
        assert apart(model, ids, sample) <= BOUND

    one.play(play())


def test_requests_end_when_aborted_or_cancelled(one: Running):
    ids = prompts(50)[0]

    async def play() -> None:
        await one.refit(policy(), 17)
        running = asyncio.ensure_future(one.ask(ids, sampling=LONG, request="doomed"))
        cancelled = asyncio.ensure_future(one.ask(ids, "c/0", sampling=LONG))
        await asyncio.sleep(0.2)
        await one.client.abort("doomed")
        cancelled.cancel()
        sample = await running
        assert sample.finish is FinishReason.ABORT and len(sample.ids) < LONG.max_tokens
        await one.generator.pause("keep")
        waiting = asyncio.ensure_future(one.ask(ids, request="waits"))
        await asyncio.sleep(0.1)
        await one.client.abort("waits")
        assert not len((await waiting).ids)
        await one.client.abort("unknown")
        await one.generator.resume()
        engine, = (await one.generator.health())["engines"]
        assert engine["running"] == engine["queued"] == 0

    one.play(play())


@pytest.mark.parametrize(("change", "length", "first", "message"), [
    ({"temperature": 1.0}, 20, 10, "neither the training nor the validation"),
    ({"top_p": 0.9}, 20, 10, "neither the training nor the validation"),
    ({}, CONTEXT, 10, "no room for a reply"), ({}, 20, 768, "vocabulary"),
])
def test_requests_that_cannot_be_right_are_refused(one: Running, change, length, first, message):
    async def play() -> None:
        ids = prompts(length)[0]
        ids[0] = first
        with pytest.raises(PluginError, match=message):
            await one.ask(ids, sampling=replace(SAMPLING, **change))

    one.play(play())


def test_weights_that_are_not_finite_are_an_error_and_no_sample(one: Running):
    broken = policy()
    with torch.no_grad():
        hf_views(broken)["model.norm.weight"].fill_(float("nan"))

    async def play() -> None:
        await one.refit(broken, 18)
        with pytest.raises(PluginError, match="log-probability of sampled token 0"):
            await one.ask(prompts(20)[0])
        await one.refit(policy(), 19)

    one.play(play())
