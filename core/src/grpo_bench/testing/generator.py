"""What a generator owes: tokens under the right weights and the right distribution, whatever else goes on around.

The kit is the trainer here: it hands over weights of its tiny policy, by version. Requests go through the client, as
those of a rollout worker do. Prompts are random bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import numpy as np

from ..contract import FinishReason, Purpose, Role, Sample, Transfer
from ..steps.transport import HF_FOLDER
from . import reference, tiny
from .requests import MANY, GeneratorRig, check_form, modes, prompt, shared_of, started
from .suite import Rig, Suite, demand, raised
from .transfers import CHUNK_BYTES, hand_over, specs_of, transfer_of
from .world import MAX_CONTEXT, MAX_TOKENS, World

DRAWS = 400
"""Tokens drawn after one prompt to see how often each comes."""
BINS = 8
LONG = 200
"""Tokens of a reply that nothing but a limit ends."""
SOON_S = 0.3
"""A deadline for what cannot be answered in time."""
REFUSED_S = 10.0
"""Long enough for any refusal, and shorter than a request's deadline."""


class GeneratorSuite(Suite):
    """Demands on generators."""

    role = Role.GENERATOR
    bound: ClassVar[float] = 1e-4
    """By how much log-probabilities of the same weights may differ between two ways to compute them; more where
    precision is less than float32."""
    engines_option: ClassVar[str] = ""
    """The option that says how many engines there are; empty: what several engines owe is not tried."""

    def open(self, world: World, rig: Rig) -> AbstractAsyncContextManager[GeneratorRig]:
        return started(rig, world.sampling(rig.descriptor.capabilities.sampling))

    @demand
    async def test_it_says_how_it_is(self, rig: GeneratorRig) -> None:
        """An address for each engine, and a health report as JSON data."""
        assert len(rig.generator.addresses()) >= 1
        assert json.loads(json.dumps(dict(await rig.generator.health()))) is not None

    @demand
    async def test_samples_are_well_formed(self, rig: GeneratorRig) -> None:
        """Ids of the vocabulary, for each a finite log-probability and the version of the weights behind it."""
        for purpose in Purpose:
            for sample in await rig.ask_many(f"{purpose}-", purpose=purpose):
                check_form(sample)
                assert {version for _, version in sample.versions} == {0}

    @demand
    async def test_replies_end_where_they_should(self, rig: GeneratorRig) -> None:
        """At the first stop token, which is part of the reply, or at the limit, which is named as such."""
        for limit in (MAX_TOKENS, 3):
            for sample in await rig.ask_many(f"end{limit}-", max_tokens=limit):
                stops = [index for index, token in enumerate(sample.ids) if token == tiny.END]
                if sample.finish is FinishReason.STOP:
                    assert stops == [len(sample.ids) - 1]
                else:
                    assert sample.finish is FinishReason.LENGTH and not stops and len(sample.ids) == limit

    @demand
    async def test_the_context_is_a_limit_too(self, rig: GeneratorRig) -> None:
        """Prompt and reply together stay within ``max_context``."""
        ids = prompt(length=MAX_CONTEXT - 5)
        for number in range(4):
            sample = await rig.ask(f"full{number}/0", ids)
            assert 1 <= len(sample.ids) <= 5

    @demand
    async def test_samples_come_from_the_distribution_they_name(self, rig: GeneratorRig) -> None:
        """The log-probability of a sampled token is the one that the probe gives it: of the training distribution,
        temperature applied, by the same computation."""
        ids = prompt()
        for sample in await rig.ask_many("draw", ids=ids):
            assert await rig.difference(ids, sample) <= self.bound

    @demand
    async def test_draws_follow_the_distribution(self, rig: GeneratorRig) -> None:
        """Of both profiles, with what is declared of temperature, top-p and so on: tokens come as often as the probe's
        log-probabilities say, none from outside the support, each with its log-probability under what is left."""
        ids = prompt(length=8)
        table = await rig.next_token(ids)
        for purpose, sampling in rig.sampling.items():
            samples = await asyncio.gather(*(rig.ask(f"{purpose}{number}/0", ids, purpose=purpose, max_tokens=1)
                                             for number in range(DRAWS)))
            tokens = np.array([sample.ids[0] for sample in samples])
            shares = reference.drawn_from(table, sampling)
            outside = reference.drawn_from(table, sampling, slack=1e-3)[tokens] == 0
            assert not outside.any(), f"{purpose.value}: {outside.sum()} of {DRAWS} tokens are outside the support"
            by_number, by_likelihood = np.arange(len(shares), dtype=np.int64), np.argsort(-shares)
            for name, order in (("by number", by_number), ("by likelihood", by_likelihood)):
                wrong, limit = reference.chi_square(tokens, shares, order, BINS)
                assert wrong <= limit, f"{purpose.value}, tokens {name}: chi-square {wrong:.0f}, at most {limit:.0f}"
            values = np.concatenate([sample.log_probabilities for sample in samples])
            inside = shares[tokens] > 0
            difference = np.abs(values - np.log(shares[tokens], where=inside, out=values.astype(float)))
            assert difference.max() <= 10 * self.bound, f"{purpose.value}: other log-probabilities"

    @demand
    async def test_the_probe_is_the_policys(self, rig: GeneratorRig) -> None:
        """It agrees with the kit's own forward pass of the weights that it handed over, for every version."""
        rig.needs(rig.descriptor.capabilities.computes == "policy", "it does not compute the policy's")
        rig.needs(rig.world.own_policy, "the kit computes its own policy only")
        for version in (0, 1):
            if version:
                await rig.refit(version)
            ids = prompt(length=40)
            probed, = await rig.generator.probe([ids])
            assert np.abs(probed - reference.log_probabilities(ids, tiny.make_tensors(version))).max() <= self.bound

    @demand
    async def test_the_probe_looks_at_each_sequence_alone(self, rig: GeneratorRig) -> None:
        """A number for each token, 0 for the first, the same in whatever company and however often asked."""
        sequences = [prompt(seed, length) for seed, length in ((1, 30), (2, 5), (3, 12))]
        together = await rig.generator.probe(sequences)
        for ids, values in zip(sequences, together, strict=True):
            assert np.asarray(values).shape == ids.shape and values[0] == 0 and np.isfinite(values).all()
            alone, = await rig.generator.probe([ids])
            np.testing.assert_allclose(alone, values, atol=self.bound)

    @demand
    async def test_a_stream_decides_what_is_drawn(self, rig: GeneratorRig) -> None:
        """The same stream gives the same tokens, where that is promised; another rollout, another turn of it and
        another seed give others."""
        first = await rig.ask_many("stream")
        assert len({tuple(sample.ids) for sample in first}) > 1, "all streams draw the same"
        later = await asyncio.gather(*(rig.ask(f"stream{number}/1") for number in range(MANY)))
        assert any(tuple(a.ids) != tuple(b.ids) for a, b in zip(first, later, strict=True)), "all turns draw the same"
        async with rig.another(seed=rig.sampling[Purpose.TRAIN].seed + 1) as other:
            others = await other.ask_many("stream")
        assert any(tuple(a.ids) != tuple(b.ids) for a, b in zip(first, others, strict=True)), "all seeds draw the same"
        rig.needs_determinism()
        for before, after in zip(first, await rig.ask_many("stream"), strict=True):
            np.testing.assert_array_equal(after.ids, before.ids)

    @demand
    async def test_neighbours_change_nothing(self, rig: GeneratorRig) -> None:
        """Alone or among others, in any order, under any affinity, with caches warm or cold: tokens and
        log-probabilities are the same bit for bit. Only so can a run be repeated."""
        rig.needs_determinism()
        ids = prompt(5, 40)
        alone = await rig.ask("quiet/0", ids)
        crowd = [rig.ask(f"crowd{number}/0", prompt(number, 5 + 7 * number)) for number in range(MANY)]
        _, among = await asyncio.gather(asyncio.gather(*crowd), rig.ask("quiet/0", ids, affinity="train-2"))
        warm = await rig.ask("quiet/0", ids)
        for sample in (among, warm):
            np.testing.assert_array_equal(sample.ids, alone.ids)
            np.testing.assert_array_equal(sample.log_probabilities, alone.log_probabilities)

    @demand
    async def test_a_second_turn_goes_on(self, rig: GeneratorRig) -> None:
        """A prompt that extends the first turn, as every later turn does, may reuse its cache; nothing else changes."""
        first = prompt(8, 20)
        reply = await rig.client.generate("r/0", first, rig.sampling[Purpose.TRAIN], stream="r/0", affinity="train-1",
                                          deadline_s=30.0)
        second = np.concatenate([first, reply.ids, prompt(9, 6)]).astype(np.int32)
        sample = await rig.ask("r/1", second)
        assert await rig.difference(second, sample) <= self.bound

    @demand
    async def test_new_weights_leave_no_cache_behind(self, rig: GeneratorRig) -> None:
        """After ``receive`` every token is sampled from the new weights alone, also where the prompt was cached."""
        ids = prompt(8, 40)
        await rig.ask("before/0", ids)
        old, = await rig.generator.probe([ids])
        await rig.refit(1)
        new, = await rig.generator.probe([ids])
        moved = float(np.abs(np.asarray(new) - np.asarray(old)).max())
        assert moved > self.bound, "the probe still answers with the old weights"
        for sample in await rig.ask_many("after", ids=ids):
            assert {version for _, version in sample.versions} == {1}
            assert await rig.difference(ids, sample) <= self.bound

    @demand
    async def test_it_reads_weights_from_a_folder(self, rig: GeneratorRig) -> None:
        """Where it receives ``hf_folder``, every engine takes the weights of a folder in HF form, and answers as when
        the same weights were sent."""
        rig.needs(HF_FOLDER in rig.descriptor.capabilities.receives, f"it does not receive {HF_FOLDER}")
        ids = prompt(8, 40)
        await rig.refit(1)
        sent, = await rig.generator.probe([ids])
        await rig.refit(2)
        folder = tiny.make_policy(rig.world.new_folder() / "weights", 1)
        await rig.generator.pause(rig.mode)
        await rig.generator.receive(Transfer(3, HF_FOLDER, str(folder), (), CHUNK_BYTES, 20.0,
                                             receivers=len(rig.generator.addresses())))
        await rig.generator.resume()
        read, = await rig.generator.probe([ids])
        assert np.abs(np.asarray(read) - np.asarray(sent)).max() <= self.bound
        for sample in await rig.ask_many("read", ids=ids):
            assert {version for _, version in sample.versions} == {3}

    @demand
    async def test_nothing_is_admitted_while_paused(self, rig: GeneratorRig) -> None:
        """In each mode it declares: a request made during a pause is answered after it."""
        for mode in modes(rig):
            await rig.generator.pause(mode)
            waiting = asyncio.ensure_future(rig.ask(f"{mode}-waits/0"))
            await asyncio.sleep(0.1)
            assert not waiting.done(), f"a request was answered during a pause ({mode})"
            await rig.generator.resume()
            check_form(await waiting)

    @demand
    async def test_draining_waits_for_what_runs(self, rig: GeneratorRig) -> None:
        """When ``pause("drain")`` returns, what was running has been answered, under the weights it began with."""
        rig.needs("drain" in rig.descriptor.capabilities.refit, "it does not declare drain")
        running = asyncio.ensure_future(rig.ask_many("drained"))
        await asyncio.sleep(0.05)
        await rig.refit(1, mode="drain")
        for sample in await running:
            check_form(sample)
            assert len({version for _, version in sample.versions}) == 1

    @demand
    async def test_keeping_goes_on_under_new_weights(self, rig: GeneratorRig) -> None:
        """A request that a refit interrupts says which of its tokens came from which version, oldest first."""
        rig.needs("keep" in rig.descriptor.capabilities.refit, "it does not declare keep")
        running = asyncio.ensure_future(rig.ask_many("kept"))
        await asyncio.sleep(0.05)
        await rig.refit(1, mode="keep")
        for sample in await running:
            check_form(sample)
            versions = [version for _, version in sample.versions]
            assert versions == sorted(set(versions)) and set(versions) <= {0, 1}
        assert {version for _, version in (await rig.ask("later/0")).versions} == {1}

    @demand
    async def test_kept_requests_compute_anew(self, rig: GeneratorRig) -> None:
        """Tokens that a kept request samples after a refit come from the new weights alone: what stood in the cache is
        computed again, so their log-probabilities are those that the probe gives."""
        rig.needs("keep" in rig.descriptor.capabilities.refit, "it does not declare keep")
        await rig.refit(1, endless=True)
        ids, version, resumed = prompt(), 1, False
        for wait_s in (0.02, 0.1, 0.5):
            running = [asyncio.ensure_future(rig.ask(f"long{version}-{number}/0", ids, max_tokens=LONG))
                       for number in range(3)]
            await asyncio.sleep(wait_s)
            version += 1
            await rig.refit(version, mode="keep", endless=True)
            for sample in await asyncio.gather(*running):
                before = sum(count for count, known in sample.versions if known < version)
                if 0 < before < len(sample.ids):
                    resumed = True
                    difference = await rig.difference(ids, sample, since=before)
                    assert difference <= self.bound, f"after the refit they differ from the probe by {difference:.2g}"
            if resumed:
                return
        rig.needs(resumed, "no refit met a reply under way")

    @demand
    async def test_all_engines_get_the_weights(self, rig: GeneratorRig) -> None:
        """With two engines, requests under many affinities, which reach both, are answered from the new weights."""
        rig.needs(self.engines_option, "the suite's engines_option names no option for the number of engines")
        async with rig.another({**self.options, self.engines_option: 2}) as pair:
            assert len(pair.generator.addresses()) == 2
            await pair.refit(1)
            ids = prompt()
            for number in range(MANY):
                sample = await pair.ask(f"all{number}/0", ids, affinity=f"train-{number}")
                assert {version for _, version in sample.versions} == {1}, "an engine kept its old weights"
                assert await pair.difference(ids, sample) <= self.bound, "an engine samples from other weights"

    @demand
    async def test_an_abort_ends_a_reply(self, rig: GeneratorRig) -> None:
        """Where it is, long before the limit that would end it, and also while it waits for a pause to be over."""
        await rig.refit(1, endless=True)
        running = [asyncio.ensure_future(rig.ask(f"long{number}/0", request=f"long{number}", max_tokens=LONG))
                   for number in range(3)]
        await asyncio.sleep(0.01)
        await asyncio.gather(*(rig.client.abort(f"long{number}") for number in range(3)))
        _check_aborted(await asyncio.gather(*running, return_exceptions=True))
        await rig.generator.pause(rig.mode)
        waiting = asyncio.ensure_future(rig.ask("waits/0", request="waits", max_tokens=LONG))
        await asyncio.sleep(0.05)
        await rig.client.abort("waits")
        await rig.generator.resume()
        _check_aborted(await asyncio.gather(waiting, return_exceptions=True))

    @demand
    async def test_aborting_frees_the_slot(self, rig: GeneratorRig) -> None:
        """An aborted request comes to an end, its neighbours and successors are served, and an unknown id is fine."""
        await rig.client.abort("no-such-request")
        await rig.client.release("no-such-rollout")
        doomed = [asyncio.ensure_future(rig.ask(f"doomed{number}/0", request=f"doomed{number}"))
                  for number in range(MANY)]
        neighbour = asyncio.ensure_future(rig.ask("neighbour/0"))
        await asyncio.sleep(0.01)
        for number in range(MANY):
            await rig.client.abort(f"doomed{number}")
        await asyncio.gather(*doomed, return_exceptions=True)
        check_form(await neighbour)
        check_form(await rig.ask("successor/0"))

    @demand
    async def test_being_cancelled_frees_the_slot(self, rig: GeneratorRig) -> None:
        """A rollout that runs out of time cancels its request."""
        doomed = [asyncio.ensure_future(rig.ask(f"doomed{number}/0")) for number in range(MANY)]
        await asyncio.sleep(0.01)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        await asyncio.gather(*(rig.ask(f"successor{number}/0") for number in range(MANY)))

    @demand
    async def test_a_deadline_is_kept(self, rig: GeneratorRig) -> None:
        """A request that cannot be served in time raises, and is gone: one stuck request must not hold up a run."""
        await rig.generator.pause(rig.mode)
        await raised(rig.ask("late/0", deadline_s=SOON_S))
        await rig.generator.resume()
        check_form(await rig.ask("next/0"))

    @demand
    async def test_other_sampling_is_refused(self, rig: GeneratorRig) -> None:
        """A request is sampled as training or validation says, or it is an error: a value that silently did something
        else would train on the wrong distribution."""
        changes: list[dict[str, Any]] = [{"temperature": 0.31}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.4},
                                         {"repetition_penalty": 1.3}]
        for change in changes:
            await raised(rig.ask("odd/0", **change))
        check_form(await rig.ask("next/0"))

    @demand
    async def test_weights_that_never_come_are_an_error(self, rig: GeneratorRig) -> None:
        """``receive`` gives up at the transfer's deadline, and the next transfer works."""
        specs = specs_of(tiny.make_tensors())
        await rig.generator.pause(rig.mode)
        await raised(rig.generator.receive(transfer_of(rig.world, specs, version=1, deadline_s=SOON_S,
                                                        receivers=len(rig.generator.addresses()))))
        await hand_over(rig.generator, rig.world, tiny.make_tensors(2), 2)
        await rig.generator.resume()
        assert {version for _, version in (await rig.ask("next/0")).versions} == {2}

    @demand
    async def test_weights_of_another_policy_are_refused(self, rig: GeneratorRig) -> None:
        """A tensor that is missing, or of another shape, raises: it must not be patched over."""
        rig.needs(rig.descriptor.capabilities.computes == "policy", "it does not compute the policy's")
        whole = dict(tiny.make_tensors(1))
        name = "model.layers.0.self_attn.q_proj.weight"
        await rig.generator.pause(rig.mode)
        for wrong in ({key: value for key, value in whole.items() if key != name},
                      {**whole, name: np.zeros((3, 5), np.float32)}):
            await raised(hand_over(rig.generator, rig.world, wrong, 1))
        await hand_over(rig.generator, rig.world, whole, 2)
        await rig.generator.resume()
        check_form(await rig.ask("next/0"))

    @demand
    async def test_a_restarted_engine_waits_for_weights(self, rig: GeneratorRig) -> None:
        """It has none until the next ``receive``, so it refuses requests instead of letting them wait; after that it
        serves as before. An engine that was restarted is not lost."""
        assert list(await rig.generator.lost()) == []
        await rig.generator.restart(0)
        assert list(await rig.generator.lost()) == []
        async with asyncio.timeout(REFUSED_S):
            await raised(rig.ask("early/0"))
        await rig.refit(3)
        assert {version for _, version in (await rig.ask("next/0")).versions} == {3}

    @demand
    async def test_closing_twice_is_fine(self, rig: GeneratorRig) -> None:
        """Also before a start, as a run that fails early does."""
        await rig.generator.close()
        await rig.generator.close()
        async with rig.world.fabric() as fabric:
            await rig.world.make(rig.descriptor, rig.config, fabric, shared_of(rig.world, rig.sampling)).close()


def _check_aborted(answers: Sequence[Sample | BaseException]) -> None:
    for answer in answers:
        assert isinstance(answer, BaseException) or len(answer.ids) < LONG, "an aborted reply went on to its limit"
