"""The trainer over an inline fabric: gradients, the optimizer, ranks, checkpoints, transfers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from grpo_bench.contract import (
    BatchError, KLSettings, LimitSettings, LossSettings, Placement, PluginContext, PolicyFacts, Purpose,
    SamplingSettings, TrainBatch, Transfer,
)
from grpo_bench.fabric import InlineFabric
from grpo_bench.steps.transport import receive_tensors
from grpo_bench.steps.update import policy_loss
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config, hf_views, load, log_probabilities, pack, save
from grpo_bench_trainer_torch import TorchTrainerConfig
from grpo_bench_trainer_torch.controller import make
from grpo_bench_trainer_torch.schedule import learning_rate
from grpo_bench_trainer_torch.shares import cut, share
from grpo_bench_trainer_torch.weights import FlatWeights

CLOCK: Any = SimpleNamespace(now_utc=lambda: "2030-01-01T00:00:00.000000+00:00")
LOSS = LossSettings()


@pytest.fixture(scope="module", params=[0, 4], ids=["dense", "moe"])
def checkpoint(request, tmp_path_factory):
    torch.set_num_threads(1)
    config = Qwen3Config(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=16, intermediate_size=48, num_experts=request.param,
                         moe_intermediate_size=32, max_position_embeddings=128, initializer_range=0.3)
    model = Qwen3(config)
    model.initialize(torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("policy")
    save(model, folder, "float32")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_batch(model, seed=0, rows=12, **change) -> TrainBatch:
    """Rows in groups of four that begin alike, each with two sampled spans."""
    rng = np.random.default_rng(seed)
    parts, mask = [], []
    prompt = np.zeros(0, np.int64)
    for row in range(rows):
        if row % 4 == 0:
            prompt = rng.integers(0, 61, rng.integers(15, 30))
        tail = rng.integers(0, 61, rng.integers(12, 30))
        parts.append(np.concatenate((prompt, tail)).astype(np.int32))
        mask.append(np.concatenate((np.zeros(len(prompt), bool), np.ones(5, bool), np.zeros(4, bool),
                                    np.ones(len(tail) - 9, bool))))
    offsets = np.cumsum([0] + [len(part) for part in parts])
    ids, token_mask = np.concatenate(parts), np.concatenate(mask)
    at = np.flatnonzero(token_mask)
    prev = np.zeros(len(ids), np.float32)
    prev[at] = log_probabilities(model, pack(ids, offsets), ids, at, 1.0).detach().numpy()
    sample_mask = (rng.random(rows) < 0.8).astype(np.float32)
    kept = np.repeat(sample_mask, np.diff(offsets))
    batch = TrainBatch(
        step=1, ids=ids, offsets=offsets, rollout=np.arange(rows, dtype=np.int32), token_mask=token_mask,
        gen_log_probabilities=prev + rng.normal(0, 0.01, len(ids)).astype(np.float32) * token_mask,
        sample_mask=sample_mask, advantages=rng.normal(0, 1, rows).astype(np.float32),
        rewards=(rng.random(rows) < 0.5).astype(np.float32), prev_log_probabilities=prev,
        n_tokens=float((kept * token_mask).sum()), n_sequences=float(sample_mask.sum()))
    return replace(batch, **change)


@asynccontextmanager
async def trainer(checkpoint, folder, loss=LOSS, temperature=1.0, **config):
    log = logging.getLogger("test")
    fabric = InlineFabric(CLOCK, log, serialise=True)
    settings = SamplingSettings(temperature=temperature)
    sampling = settings.stamp(Purpose.TRAIN, stop_token_ids=(), max_context=128, seed=0)
    made = make(PluginContext(
        config=TorchTrainerConfig(**{"workers": 2, "batch_tokens": 80, **config}), fabric=fabric, placement=Placement(),
        run_folder=folder, policy=PolicyFacts(checkpoint, 128, 61), seed=0, deterministic=True, clock=CLOCK, logger=log,
        shared={"loss": loss, "sampling": {Purpose.TRAIN: sampling}, "limits": LimitSettings()}))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def run(checkpoint, folder, play, **options):
    async def inside():
        async with trainer(checkpoint, folder, **options) as made:
            return await play(made)

    return asyncio.run(inside())


def expected_gradient(model, batch, loss=LOSS):
    """Loss and gradient in one piece, rows unpacked."""
    ids, offsets = batch.ids, batch.offsets
    at = np.flatnonzero(batch.token_mask)
    row = np.repeat(np.arange(batch.rows), np.diff(offsets))[at]
    packed = pack(ids, offsets, share_prefixes=False)
    cur = log_probabilities(model, packed, ids, at, 1.0)
    result = policy_loss(
        cur, torch.from_numpy(row), gen=torch.from_numpy(batch.gen_log_probabilities[at]),
        prev=torch.from_numpy(batch.prev_log_probabilities[at]), ref=None,
        advantages=torch.from_numpy(batch.advantages), sample_mask=torch.from_numpy(batch.sample_mask),
        rewards=torch.from_numpy(batch.rewards), n_tokens=batch.n_tokens, n_sequences=batch.n_sequences,
        n_positive_tokens=1.0, settings=loss)
    result.loss.backward()
    return float(result.loss.detach()), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("options", [
    {"workers": 1, "batch_tokens": 10**6}, {"workers": 3}, {"batch_tokens": 1}, {"share_prefixes": False},
])
def test_the_step_does_not_depend_on_the_split(checkpoint, tmp_path, options):
    batch = make_batch(load(checkpoint))
    loss, gradient = expected_gradient(load(checkpoint), batch)
    stats = run(checkpoint, tmp_path, lambda made: made.update(batch), **options)
    assert stats.loss == pytest.approx(loss, abs=1e-6)
    assert stats.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-4)
    assert stats.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_one_step_is_clipped_adam(checkpoint, tmp_path):
    model = load(checkpoint)
    batch = make_batch(model)
    _, gradient = expected_gradient(model, batch)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gradient *= 0.01 / (gradient.norm() + 1e-6)

    async def play(made):
        await made.update(batch)
        await made.save(tmp_path, "weights")

    run(checkpoint, tmp_path, play, learning_rate=0.01, clip_norm=0.01, eps=1e-5)
    after = torch.cat([parameter.detach().flatten() for parameter in load(tmp_path).parameters()])
    assert torch.allclose(after - before, -0.01 * gradient / (gradient.abs() + 1e-5), atol=2e-4)


def test_updates_are_those_of_adamw(checkpoint):
    ours = FlatWeights(load(checkpoint), TorchTrainerConfig(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1))
    theirs = [ours.values[:ours.matrices].clone(), ours.values[ours.matrices:].clone()]
    groups = [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    for rate in (0.01, 0.02, 0.005):
        ours.gradient.normal_(generator=generator)
        theirs[0].grad, theirs[1].grad = ours.gradient[:ours.matrices], ours.gradient[ours.matrices:]
        for group in optimizer.param_groups:
            group["lr"] = rate
        ours.apply(rate)
        optimizer.step()
    assert torch.allclose(ours.values, torch.cat(theirs), atol=1e-6)


def test_log_probabilities_of_sampled_tokens(checkpoint, tmp_path):
    batch = make_batch(load(checkpoint))

    async def play(made):
        first = await made.log_probabilities(batch, "current")
        await made.update(batch)
        return first, await made.log_probabilities(batch, "current"), await made.log_probabilities(batch, "reference")

    before, after, reference = run(checkpoint, tmp_path, play, learning_rate=0.01)
    assert before == pytest.approx(batch.prev_log_probabilities, abs=1e-5)
    assert np.array_equal(before, reference)
    assert np.abs(after - before).max() > 0.01
    assert not after[~batch.token_mask].any()


def test_temperature_divides_the_logits(checkpoint, tmp_path):
    model = load(checkpoint)
    batch = make_batch(model)
    at = np.flatnonzero(batch.token_mask)
    expected = log_probabilities(model, pack(batch.ids, batch.offsets), batch.ids, at, 0.5).detach().numpy()
    found = run(checkpoint, tmp_path, lambda made: made.log_probabilities(batch, "current"), temperature=0.5)
    assert found[at] == pytest.approx(expected, abs=1e-5)


def test_a_penalty_keeps_the_policy_near_where_training_started(checkpoint, tmp_path):
    batch = make_batch(load(checkpoint))

    async def play(made):
        given = replace(batch, reference_log_probabilities=await made.log_probabilities(batch, "reference"))
        first, second = await made.update(given), await made.update(given)
        return first.metrics["kl_penalty"], second.metrics["kl_penalty"]

    first, second = run(checkpoint, tmp_path, play, loss=LossSettings(kl=KLSettings(penalty=0.5)), learning_rate=0.01)
    assert first == pytest.approx(0, abs=1e-6)
    assert second > 1e-4


def test_equal_runs_give_equal_bits(checkpoint, tmp_path):
    batches = [make_batch(load(checkpoint), seed) for seed in (1, 2)]

    async def play(made):
        for batch in batches:
            await made.update(batch)
        return await made.weights_sha256()

    assert run(checkpoint, tmp_path, play) == run(checkpoint, tmp_path, play)


def test_reusing_the_forward_pass_changes_no_bit(checkpoint, tmp_path):
    batches = [make_batch(load(checkpoint), seed) for seed in (1, 2)]

    async def play(made):
        stats = None
        for batch in batches:
            prev = await made.log_probabilities(batch, "current")
            stats = await made.update(replace(batch, prev_log_probabilities=prev))
        other = await made.log_probabilities(batches[0], "current")
        await made.update(batches[1])
        return stats, other.tolist(), await made.weights_sha256()

    assert run(checkpoint, tmp_path, play, reuse_forward=False) == run(checkpoint, tmp_path, play)


def test_a_resumed_trainer_goes_on_bit_for_bit(checkpoint, tmp_path):
    batches = [make_batch(load(checkpoint), seed) for seed in (1, 2, 3)]
    options = {"learning_rate": 0.01, "warmup_steps": 2, "schedule": "cosine", "decay_steps": 5}

    async def whole(made):
        for batch in batches[:2]:
            await made.update(batch)
        await made.save(tmp_path, "full")
        last = await made.update(batches[2])
        return last, await made.weights_sha256()

    async def rest(made):
        await made.load(tmp_path)
        last = await made.update(batches[2])
        return last, await made.weights_sha256()

    assert run(checkpoint, tmp_path, whole, **options) == run(checkpoint, tmp_path, rest, **options)


def test_saved_weights_are_a_folder_in_hf_form(checkpoint, tmp_path):
    async def play(made):
        await made.save(tmp_path, "weights")
        return await made.weights_sha256()

    run(checkpoint, tmp_path, play)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    stored, source = load_file(tmp_path / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert stored.keys() == source.keys()
    assert all(torch.equal(stored[name], source[name]) for name in stored)


def test_sent_weights_are_the_weights(checkpoint, tmp_path):
    batch = make_batch(load(checkpoint))

    async def play(made):
        await made.update(batch)
        transfer = Transfer(1, "safetensors", str(tmp_path), made.tensors(), 4096, 5.0)

        async def receive():
            return {spec.name: np.frombuffer(data, np.float32) async for spec, data in receive_tensors(transfer, 0)}

        sent, got = await asyncio.gather(made.send(transfer), receive())
        (tmp_path / "saved").mkdir()
        await made.save(tmp_path / "saved", "weights")
        return sent, got

    sent, got = run(checkpoint, tmp_path, play)
    views = hf_views(load(tmp_path / "saved"))
    assert sent == sum(view.numel() * 4 for view in views.values())
    assert all(np.array_equal(got[name], view.flatten().numpy()) for name, view in views.items())


def test_a_batch_without_a_token_that_trains_is_refused_and_nothing_changes(checkpoint, tmp_path):
    async def play(made):
        before = await made.weights_sha256()
        with pytest.raises(BatchError, match="no token of this batch trains"):
            await made.update(make_batch(load(checkpoint), n_tokens=0.0))
        return before == await made.weights_sha256()

    assert run(checkpoint, tmp_path, play)


def test_a_gradient_that_is_not_finite_is_refused_and_nothing_changes(checkpoint, tmp_path):
    batch = make_batch(load(checkpoint))

    async def play(made):
        before = await made.weights_sha256()
        with pytest.raises(BatchError, match="norm is nan"):
            await made.update(replace(batch, advantages=np.full(batch.rows, np.nan, np.float32)))
        return before == await made.weights_sha256()

    assert run(checkpoint, tmp_path, play)


def test_parts_cover_every_row_once_and_ranks_share_them(checkpoint):
    batch = make_batch(load(checkpoint))
    shares = [share(batch, rank=rank, ranks=3, batch_tokens=80, share_prefixes=True) for rank in range(3)]
    rows = np.concatenate([part.rows for parts in shares for part in parts])
    assert sorted(rows.tolist()) == list(range(batch.rows))
    assert all(shares)
    for part in cut(batch, 80, True):
        expected = np.concatenate([batch.ids[batch.offsets[row]:batch.offsets[row + 1]] for row in part.rows])
        assert np.array_equal(batch.ids[part.tokens], expected)
        assert part.cost <= 80 or len(part.rows) == 1


def test_learning_rates_rise_and_fall():
    config = TorchTrainerConfig(learning_rate=1.0, warmup_steps=2, schedule="linear", decay_steps=6,
                                min_learning_rate=0.2)
    assert [learning_rate(config, step) for step in range(1, 8)] == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = TorchTrainerConfig(learning_rate=1.0, schedule="cosine", decay_steps=4)
    assert learning_rate(cosine, 2) == pytest.approx(0.5)


def test_schedules_without_an_end_are_refused():
    with pytest.raises(ValueError, match="decay_steps"):
        TorchTrainerConfig(schedule="cosine")
    with pytest.raises(ValueError, match="min_learning_rate does nothing"):
        TorchTrainerConfig(min_learning_rate=1e-4)
    assert TorchTrainerConfig(learning_rate=1e-4, min_learning_rate=1e-4).schedule == "constant"
