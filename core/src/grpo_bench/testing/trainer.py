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
from typing import ClassVar

import numpy as np
import pytest

from ..contract import Floats, Ids, LossSettings, Purpose, Role, TrainBatch, Trainer, UpdateStats
from ..steps import probe_batch
from . import reference
from .batches import (
    LOSS, ROWS, TEMPERATURE, by_token, clipped, make_batch, off_policy, sequences, tokens_of,
)
from .suite import Rig, Suite, demand, raised
from .transfers import HF_FILES, SAFETENSORS, apart, exchanged, stored, transfer_of
from .world import World


@dataclass
class TrainerRig(Rig):
    """``trainer``, started on the kit's policy."""

    trainer: Trainer

    @asynccontextmanager
    async def another(self, checkpoint: Path | None = None) -> AsyncIterator[Trainer]:
        """One more trainer, on a fabric of its own."""
        async with _started(self, checkpoint) as trainer:
            yield trainer

    @asynccontextmanager
    async def unusual(self) -> AsyncIterator[Trainer]:
        """One more trainer, with a loss and a temperature that are not the defaults."""
        async with _started(self, None, LOSS, TEMPERATURE) as trainer:
            yield trainer

    async def probe(self, trainer: Trainer | None = None) -> Floats:
        """Log-probabilities of fixed sequences under the current weights, row starts left out."""
        batch = probe_batch(sequences())
        values = await (trainer or self.trainer).log_probabilities(batch, "current")
        return np.asarray(values)[batch.token_mask]


class TrainerSuite(Suite):
    """Demands on trainers."""

    role = Role.TRAINER
    bound: ClassVar[float] = 1e-4
    """By how much log-probabilities of the same weights may differ between two ways to compute them; more where
    precision is less than float32."""

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
        """They agree with the kit's own forward pass of its policy, temperature applied."""
        rig.needs(rig.descriptor.capabilities.computes == "policy", "it does not compute the policy's")
        rig.needs(rig.world.own_policy, "the kit computes its own policy only")
        async with rig.unusual() as trainer:
            for temperature, asked in ((1.0, rig.trainer), (TEMPERATURE, trainer)):
                wanted = np.concatenate([reference.log_probabilities(ids, temperature=temperature)[1:]
                                         for ids in sequences()])
                difference = np.abs(await rig.probe(asked) - wanted).max()
                assert difference <= self.bound, f"at temperature {temperature} they differ by {difference:.2g}"

    @demand
    async def test_rows_do_not_see_each_other(self, rig: TrainerRig) -> None:
        """A row's log-probabilities are the same in any order, and alone; packed neighbours must not leak."""
        rows = sequences()
        whole = await _by_row(rig.trainer, rows)
        reverse = await _by_row(rig.trainer, rows[::-1])
        alone = [(await _by_row(rig.trainer, [row]))[0] for row in rows]
        for row, other, single in zip(whole, reverse[::-1], alone, strict=True):
            np.testing.assert_allclose(other, row, atol=self.bound)
            np.testing.assert_allclose(single, row, atol=self.bound)

    @demand
    async def test_the_reference_stays(self, rig: TrainerRig) -> None:
        """``reference`` is the policy that the run started from, before and after updates."""
        batch = probe_batch(sequences())
        current = np.asarray(await rig.trainer.log_probabilities(batch, "current"))
        before = np.asarray(await rig.trainer.log_probabilities(batch, "reference"))
        np.testing.assert_allclose(before, current, atol=self.bound)
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
        assert float((gain * by_token(batch, batch.advantages))[batch.token_mask].sum()) > 0

    @demand
    async def test_the_loss_is_the_contracts(self, rig: TrainerRig) -> None:
        """Off policy, at another temperature than 1, with a clip and truncated importance weights as the profile could
        set them: ``loss`` is the contract's, computed from the trainer's own log-probabilities. So it is when the
        advantages change places."""
        async with rig.unusual() as trainer:
            for advantages in (make_batch().advantages, make_batch().advantages[::-1].copy()):
                batch = replace(make_batch(), advantages=advantages)
                current = np.asarray(await trainer.log_probabilities(batch, "current"))
                batch = off_policy(batch, current)
                wanted = reference.token_loss(current, batch, LOSS)
                stats = await trainer.update(batch)
                assert abs(stats.loss - wanted) <= 5 * self.bound, f"loss {stats.loss:.6g} instead of {wanted:.6g}"

    @demand
    async def test_an_update_lowers_the_loss(self, rig: TrainerRig) -> None:
        """The loss of that batch, computed anew from the trainer's log-probabilities after an update: the gradient is
        the one of the loss, at the temperature and with the settings of the profile."""
        async with rig.unusual() as trainer:
            current = np.asarray(await trainer.log_probabilities(make_batch(), "current"))
            batch = off_policy(make_batch(), current)
            stats = await trainer.update(batch)
            rig.needs(stats.learning_rate > 0, "its learning rate is 0 at the first update")
            after = np.asarray(await trainer.log_probabilities(batch, "current"))
            before, now = (reference.token_loss(values, batch, LOSS) for values in (current, after))
            assert now < before, f"the loss went from {before:.6g} to {now:.6g}"

    @demand
    async def test_only_sampled_tokens_within_the_clip_train(self, rig: TrainerRig) -> None:
        """A batch whose every sampled token is beyond the profile's clip has no gradient: it would have one if prompts
        trained, if tokens were taken for their neighbours, or if another clip or other ``prev`` were used. Each row
        that is not beyond it has one."""
        async with rig.unusual() as trainer:
            batch = make_batch()
            current = np.asarray(await trainer.log_probabilities(batch, "current"))
            still = await trainer.update(clipped(batch, current))
            assert still.grad_norm <= 10 * self.bound, f"the gradient's norm is {still.grad_norm:.3g}"
        for row in (0, ROWS - 1):
            async with rig.unusual() as trainer:
                stats = await trainer.update(clipped(batch, current, but=row))
                assert stats.grad_norm > 10 * self.bound, f"row {row} does not train"

    @demand
    async def test_nothing_is_learned_where_nothing_was_better(self, rig: TrainerRig) -> None:
        """With all advantages 0 the gradient is 0. Weights may move: some optimizers let them decay."""
        stats = await _update(rig.trainer, replace(make_batch(), advantages=np.zeros(ROWS, np.float32)))
        assert stats.grad_norm <= 1e-6

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
        kept = replace(batch, sample_mask=np.array([1, 1, 1, 1, 0, 0], np.float32), n_tokens=tokens_of(batch, 4),
                       n_sequences=4.0)
        odd = replace(kept, advantages=np.concatenate([batch.advantages[:4], [50, -50]]).astype(np.float32))
        first = await _update(rig.trainer, kept)
        async with rig.another() as trainer:
            second = await _update(trainer, odd)
        assert second.loss == pytest.approx(first.loss, rel=10 * self.bound, abs=1e-7)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=10 * self.bound)

    @demand
    async def test_the_batchs_own_counts_divide(self, rig: TrainerRig) -> None:
        """``n_tokens`` counts the whole global batch; a trainer that counts its own part instead averages averages.
        Both the loss and its gradient are divided by it."""
        first = await _update(rig.trainer)
        async with rig.another() as trainer:
            second = await _update(trainer, replace(make_batch(), n_tokens=2 * make_batch().n_tokens))
        assert second.loss == pytest.approx(first.loss / 2, rel=10 * self.bound)
        assert second.grad_norm == pytest.approx(first.grad_norm / 2, rel=10 * self.bound)

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
        """Before any update, what is sent are the tensors of the policy's folder, by their HF names: the same values,
        in whatever precision."""
        rig.needs(_sends(rig), f"it does not send over {SAFETENSORS}, the transport that the kit can read")
        got, _ = await exchanged(rig.trainer, transfer_of(rig.world, rig.trainer.tensors(), version=0))
        assert not (wrong := apart(got, stored(rig.world.policy.checkpoint))), wrong

    @demand
    async def test_what_was_learned_is_sent(self, rig: TrainerRig) -> None:
        """After an update, the tensors sent are those that ``save`` writes, and no longer those of the policy's
        folder."""
        rig.needs(_sends(rig), f"it does not send over {SAFETENSORS}, the transport that the kit can read")
        stats = await _update(rig.trainer)
        folder = rig.world.new_folder()
        await rig.trainer.save(folder, "weights")
        got, _ = await exchanged(rig.trainer, transfer_of(rig.world, rig.trainer.tensors(), version=1))
        assert not (wrong := apart(got, stored(folder))), wrong
        rig.needs(stats.learning_rate > 0, "its learning rate is 0 at the first update")
        assert apart(got, stored(rig.world.policy.checkpoint)), "the policy's own weights are sent after an update"

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
        saved, policy = stored(folder, HF_FILES), stored(rig.world.policy.checkpoint, HF_FILES)
        assert {spec.name for spec in saved} == {spec.name for spec in policy}

    @demand
    async def test_saved_weights_are_the_current_ones(self, rig: TrainerRig) -> None:
        """A trainer that starts from the saved folder has the log-probabilities of the one that saved it."""
        await _update(rig.trainer)
        folder = rig.world.new_folder()
        await rig.trainer.save(folder, "weights")
        async with rig.another(checkpoint=folder) as trainer:
            np.testing.assert_allclose(await rig.probe(trainer), await rig.probe(), atol=self.bound)

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
                np.testing.assert_allclose(await rig.probe(trainer), await rig.probe(), atol=self.bound)

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


def _shared(rig: Rig, loss: LossSettings | None = None, temperature: float = 1.0) -> dict[str, object]:
    sends = rig.descriptor.capabilities.sends
    sampling = rig.world.sampling(frozenset())
    sampling[Purpose.TRAIN] = replace(sampling[Purpose.TRAIN], temperature=temperature)
    return {"loss": loss or rig.world.loss, "limits": rig.world.limits, "sampling": sampling,
            "transport": SAFETENSORS if SAFETENSORS in sends else min(sends)}


@asynccontextmanager
async def _started(rig: Rig, checkpoint: Path | None, loss: LossSettings | None = None,
                   temperature: float = 1.0) -> AsyncIterator[Trainer]:
    async with rig.world.fabric() as fabric:
        trainer: Trainer = rig.world.make(rig.descriptor, rig.config, fabric, _shared(rig, loss, temperature),
                                          checkpoint)
        try:
            await trainer.start()
            yield trainer
        finally:
            await trainer.close()
