"""What a trainer owes: log-probabilities, updates in the right direction, weights that travel, checkpoints that go on.

Demands work on small batches of random bytes. Whatever is compared between two trainers is compared as a run would:
through log-probabilities and hashes, never by looking inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ..contract import Floats, Ids, Role, TrainBatch, Trainer, UpdateStats
from ..steps import probe_batch
from . import reference
from .suite import Rig, Suite, demand, raised
from .transfers import SAFETENSORS, exchanged, stored, transfer_of
from .world import World

BOUND = 1e-4
"""By how much log-probabilities of the same weights may differ between two ways to compute them."""
VOCABULARY = 256


@dataclass
class TrainerRig(Rig):
    """``trainer``, started on the kit's policy."""

    trainer: Trainer

    @asynccontextmanager
    async def another(self, checkpoint: Path | None = None) -> AsyncIterator[Trainer]:
        """One more trainer, on a fabric of its own."""
        async with _started(self, checkpoint) as trainer:
            yield trainer

    async def probe(self, trainer: Trainer | None = None) -> Floats:
        """Log-probabilities of fixed sequences under the current weights, row starts left out."""
        batch = probe_batch(sequences())
        values = await (trainer or self.trainer).log_probabilities(batch, "current")
        return np.asarray(values)[batch.token_mask]


class TrainerSuite(Suite):
    """Demands on trainers."""

    role = Role.TRAINER

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[TrainerRig]:
        async with _started(rig, None) as trainer:
            yield TrainerRig(**vars(rig), trainer=trainer)

    @demand
    async def test_every_token_has_a_log_probability(self, rig: TrainerRig) -> None:
        """One finite number at most 0 for each token, and 0 where a row starts, since nothing stands before it."""
        batch = probe_batch(sequences())
        values = np.asarray(await rig.trainer.log_probabilities(batch, "current"))
        assert values.shape == batch.ids.shape
        assert np.isfinite(values).all() and (values <= 1e-6).all()
        assert (values[batch.offsets[:-1]] == 0).all()

    @demand
    async def test_log_probabilities_are_the_policys(self, rig: TrainerRig) -> None:
        """They agree with the kit's own forward pass of its policy."""
        rig.needs(rig.descriptor.capabilities.computes == "policy", "it does not compute the policy's")
        rig.needs(rig.world.own_policy, "the kit computes its own policy only")
        wanted = np.concatenate([reference.log_probabilities(ids)[1:] for ids in sequences()])
        assert np.abs(await rig.probe() - wanted).max() <= BOUND

    @demand
    async def test_rows_do_not_see_each_other(self, rig: TrainerRig) -> None:
        """A row's log-probabilities are the same in any order, and alone; packed neighbours must not leak."""
        rows = sequences()
        whole = await _by_row(rig.trainer, rows)
        reverse = await _by_row(rig.trainer, rows[::-1])
        alone = [(await _by_row(rig.trainer, [row]))[0] for row in rows]
        for row, other, single in zip(whole, reverse[::-1], alone, strict=True):
            np.testing.assert_allclose(other, row, atol=BOUND)
            np.testing.assert_allclose(single, row, atol=BOUND)

    @demand
    async def test_the_reference_stays(self, rig: TrainerRig) -> None:
        """``reference`` is the policy that the run started from, before and after updates."""
        batch = probe_batch(sequences())
        current = np.asarray(await rig.trainer.log_probabilities(batch, "current"))
        before = np.asarray(await rig.trainer.log_probabilities(batch, "reference"))
        np.testing.assert_allclose(before, current, atol=BOUND)
        await _update(rig.trainer)
        after = np.asarray(await rig.trainer.log_probabilities(batch, "reference"))
        np.testing.assert_array_equal(after, before)

    @demand
    async def test_an_update_tells_what_it_did(self, rig: TrainerRig) -> None:
        """Finite loss, norm and learning rate, and the time it ended, in UTC: deferred evaluation counts from it."""
        stats = await _update(rig.trainer)
        assert isinstance(stats, UpdateStats)
        assert np.isfinite([stats.loss, stats.grad_norm, stats.learning_rate]).all()
        assert stats.grad_norm >= 0 and stats.learning_rate >= 0 and stats.tokens > 0
        assert datetime.fromisoformat(stats.ended_at).utcoffset() == timedelta(0)
        assert all(np.isfinite(value) for value in stats.metrics.values())

    @demand
    async def test_an_update_makes_what_was_good_likelier(self, rig: TrainerRig) -> None:
        """Weighed by their advantages, the sampled tokens gain probability."""
        batch = make_batch()
        before = np.asarray(await rig.trainer.log_probabilities(batch, "current"))
        stats = await _update(rig.trainer, batch)
        rig.needs(stats.learning_rate > 0, "its learning rate is 0 at the first update")
        gain = np.asarray(await rig.trainer.log_probabilities(batch, "current")) - before
        advantage = np.repeat(batch.advantages, np.diff(batch.offsets))
        assert float((gain * advantage)[batch.token_mask].sum()) > 0

    @demand
    async def test_nothing_is_learned_where_nothing_was_better(self, rig: TrainerRig) -> None:
        """With all advantages 0 the gradient is 0, and a first update leaves the weights as they are."""
        before = await rig.trainer.weights_sha256()
        stats = await _update(rig.trainer, replace(make_batch(), advantages=np.zeros(ROWS, np.float32)))
        assert stats.grad_norm <= 1e-6
        assert await rig.trainer.weights_sha256() == before

    @demand
    async def test_advantages_decide_whether_weights_move(self, rig: TrainerRig) -> None:
        """With advantages that differ, an update changes the weights, and their hash."""
        before = await rig.trainer.weights_sha256()
        stats = await _update(rig.trainer)
        rig.needs(stats.learning_rate > 0, "its learning rate is 0 at the first update")
        assert await rig.trainer.weights_sha256() != before

    @demand
    async def test_masked_rows_do_not_train(self, rig: TrainerRig) -> None:
        """Rows with sample mask 0 change neither loss nor gradient, whatever is in them."""
        batch = make_batch()
        kept = replace(batch, sample_mask=np.array([1, 1, 1, 1, 0, 0], np.float32), n_tokens=_tokens(batch, 4),
                       n_sequences=4.0)
        odd = replace(kept, advantages=np.concatenate([batch.advantages[:4], [50, -50]]).astype(np.float32))
        first = await _update(rig.trainer, kept)
        async with rig.another() as trainer:
            second = await _update(trainer, odd)
        assert second.loss == pytest.approx(first.loss, rel=1e-3, abs=1e-7)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-3)

    @demand
    async def test_the_batchs_own_counts_divide(self, rig: TrainerRig) -> None:
        """``n_tokens`` counts the whole global batch; a trainer that counts its own part instead averages averages."""
        first = await _update(rig.trainer)
        async with rig.another() as trainer:
            second = await _update(trainer, replace(make_batch(), n_tokens=2 * make_batch().n_tokens))
        assert second.loss == pytest.approx(first.loss / 2, rel=1e-3)

    @demand
    async def test_a_batch_without_tokens_is_refused(self, rig: TrainerRig) -> None:
        """With every row masked there is nothing to divide by: an error, before anything changes."""
        batch, before = make_batch(), await rig.trainer.weights_sha256()
        await raised(_update(rig.trainer, replace(batch, sample_mask=np.zeros(ROWS, np.float32), n_tokens=0.0,
                                                  n_sequences=0.0)))
        assert await rig.trainer.weights_sha256() == before

    @demand
    async def test_equal_weights_have_equal_hashes(self, rig: TrainerRig) -> None:
        """Two trainers that started alike agree, and asking changes nothing."""
        first = await rig.trainer.weights_sha256()
        async with rig.another() as trainer:
            assert await trainer.weights_sha256() == first == await rig.trainer.weights_sha256()

    @demand
    async def test_equal_updates_give_equal_weights(self, rig: TrainerRig) -> None:
        """Bit for bit, where the capabilities promise determinism."""
        rig.needs_determinism()
        async with rig.another() as trainer:
            for step in (1, 2):
                await _update(rig.trainer, make_batch(step))
                await _update(trainer, make_batch(step))
            assert await trainer.weights_sha256() == await rig.trainer.weights_sha256()

    @demand
    async def test_tensors_are_what_is_sent(self, rig: TrainerRig) -> None:
        """Names, shapes, order and bytes of a transfer are those of ``tensors``, however small its chunks."""
        rig.needs(_sends(rig), f"it does not send over {SAFETENSORS}, the transport that the kit can read")
        specs = rig.trainer.tensors()
        assert specs and len({spec.name for spec in specs}) == len(specs)
        for chunk_bytes in (2**20, 1000):
            got, sent = await exchanged(rig.trainer, transfer_of(rig.world, specs, version=1, chunk_bytes=chunk_bytes))
            assert tuple(got) == specs
            assert sent == sum(map(len, got.values()))
        assert rig.trainer.tensors() == specs

    @demand
    async def test_the_first_transfer_is_the_policy(self, rig: TrainerRig) -> None:
        """Before any update, what is sent are the tensors of the policy's folder, by their HF names."""
        rig.needs(_sends(rig), f"it does not send over {SAFETENSORS}, the transport that the kit can read")
        base = stored(rig.world.policy.checkpoint)
        got, _ = await exchanged(rig.trainer, transfer_of(rig.world, rig.trainer.tensors(), version=0))
        assert {spec.name for spec in got} == {spec.name for spec in base}
        assert all(got[spec] == base[spec] for spec in got if spec in base)

    @demand
    async def test_a_transfer_that_cannot_be_made_raises(self, rig: TrainerRig) -> None:
        """A sender without a rendezvous must not keep the generator waiting."""
        rig.needs(_sends(rig), f"it does not send over {SAFETENSORS}, the transport that the kit can read")
        transfer = transfer_of(rig.world, rig.trainer.tensors(), version=1)
        await raised(rig.trainer.send(replace(transfer, rendezvous=f"{transfer.rendezvous}/nowhere", deadline_s=5.0)))

    @demand
    async def test_saved_weights_are_an_hf_folder(self, rig: TrainerRig) -> None:
        """Configuration, tokenizer, and the policy's tensors: what any HF tool, and the next run, can load."""
        await _update(rig.trainer)
        folder = rig.world.new_folder()
        await rig.trainer.save(folder, "weights")
        names = {file.name for file in folder.iterdir()}
        assert {"config.json", "tokenizer.json"} <= names
        assert {spec.name for spec in stored(folder)} == {spec.name for spec in stored(rig.world.policy.checkpoint)}

    @demand
    async def test_saved_weights_are_the_current_ones(self, rig: TrainerRig) -> None:
        """A trainer that starts from the saved folder has the log-probabilities of the one that saved it."""
        await _update(rig.trainer)
        folder = rig.world.new_folder()
        await rig.trainer.save(folder, "weights")
        async with rig.another(checkpoint=folder) as trainer:
            np.testing.assert_allclose(await rig.probe(trainer), await rig.probe(), atol=BOUND)

    @demand
    async def test_a_checkpoint_goes_on(self, rig: TrainerRig) -> None:
        """``full`` then ``load`` in a new process gives the same weights, and the next update the same again: bit for
        bit where the capabilities promise determinism."""
        await _update(rig.trainer, make_batch(1))
        folder = rig.world.new_folder()
        await rig.trainer.save(folder, "full")
        saved = await rig.trainer.weights_sha256()
        await _update(rig.trainer, make_batch(2))
        async with rig.another() as trainer:
            await trainer.load(folder)
            assert await trainer.weights_sha256() == saved
            await _update(trainer, make_batch(2))
            if rig.descriptor.capabilities.deterministic:
                assert await trainer.weights_sha256() == await rig.trainer.weights_sha256()
            else:
                np.testing.assert_allclose(await rig.probe(trainer), await rig.probe(), atol=BOUND)

    @demand
    async def test_loading_what_is_not_there_raises(self, rig: TrainerRig) -> None:
        """An empty folder is no checkpoint."""
        await raised(rig.trainer.load(rig.world.new_folder()))

    @demand
    async def test_closing_twice_is_fine(self, rig: TrainerRig) -> None:
        """Also before a start, as a run that fails early does."""
        await rig.trainer.close()
        await rig.trainer.close()
        async with rig.world.fabric() as fabric:
            await rig.world.make(rig.descriptor, rig.config, fabric, _shared(rig)).close()


ROWS = 6


def sequences() -> list[Ids]:
    """Rows of random bytes, two of them with a beginning in common."""
    random = np.random.RandomState(3)
    rows = [random.randint(0, VOCABULARY, length).astype(np.int32) for length in (12, 30, 7, 2)]
    return [*rows, np.concatenate([rows[1][:20], rows[0]])]


def make_batch(step: int = 1) -> TrainBatch:
    """Six rows in groups of two that share a prompt, with advantages of both signs that do not add up to 0."""
    random = np.random.RandomState(step)
    prompts = [random.randint(0, VOCABULARY, random.randint(6, 20)) for _ in range(ROWS // 2)]
    rows, masks = [], []
    for row in range(ROWS):
        prompt, reply = prompts[row // 2], random.randint(0, VOCABULARY, random.randint(5, 16))
        rows.append(np.concatenate([prompt, reply]).astype(np.int32))
        masks.append(np.concatenate([np.zeros(len(prompt), np.bool_), np.ones(len(reply), np.bool_)]))
    mask = np.concatenate(masks)
    return TrainBatch(
        step=step, ids=np.concatenate(rows), offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        rollout=np.arange(ROWS, dtype=np.int32), token_mask=mask, gen_log_probabilities=np.zeros(len(mask), np.float32),
        sample_mask=np.ones(ROWS, np.float32), advantages=np.array([1, -0.5, 1.5, -1, 0.5, -0.25], np.float32),
        rewards=np.array([1, 0, 1, 0, 1, 0], np.float32), prev_log_probabilities=None, n_tokens=float(mask.sum()),
        n_sequences=float(ROWS))


def _tokens(batch: TrainBatch, rows: int) -> float:
    return float(batch.token_mask[:batch.offsets[rows]].sum())


async def _update(trainer: Trainer, batch: TrainBatch | None = None) -> UpdateStats:
    """A step as the engine makes it: log-probabilities first, on policy."""
    batch = batch or make_batch()
    values = np.where(batch.token_mask, await trainer.log_probabilities(batch, "current"), 0).astype(np.float32)
    return await trainer.update(replace(batch, gen_log_probabilities=values, prev_log_probabilities=values))


async def _by_row(trainer: Trainer, rows: Sequence[Ids]) -> list[Floats]:
    batch = probe_batch(rows)
    values = np.asarray(await trainer.log_probabilities(batch, "current"))
    return np.split(values, batch.offsets[1:-1])


def _sends(rig: Rig) -> bool:
    return SAFETENSORS in rig.descriptor.capabilities.sends


def _shared(rig: Rig) -> dict[str, object]:
    sends = rig.descriptor.capabilities.sends
    return {"loss": rig.world.loss, "limits": rig.world.limits, "sampling": rig.world.sampling(frozenset()),
            "transport": SAFETENSORS if SAFETENSORS in sends else min(sends)}


@asynccontextmanager
async def _started(rig: Rig, checkpoint: Path | None) -> AsyncIterator[Trainer]:
    async with rig.world.fabric() as fabric:
        trainer: Trainer = rig.world.make(rig.descriptor, rig.config, fabric, _shared(rig), checkpoint)
        try:
            await trainer.start()
            yield trainer
        finally:
            await trainer.close()
