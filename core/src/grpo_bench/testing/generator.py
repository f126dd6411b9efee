"""What a generator owes: tokens under the right weights and the right distribution, whatever else goes on around.

The kit is the trainer here: it hands over weights of its tiny policy, by version. Requests go through the client, as
those of a rollout worker do. Prompts are random bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ..contract import FinishReason, Generator, GeneratorClient, Ids, Purpose, Role, Sample, Sampling, load_object
from . import reference, tiny
from .suite import Rig, Suite, demand, raised
from .transfers import SAFETENSORS, hand_over, specs_of, transfer_of
from .world import MAX_CONTEXT, MAX_TOKENS, World

BOUND = 1e-4
"""By how much log-probabilities of the same weights may differ between two ways to compute them."""
MANY = 16
SOON_S = 0.3
"""A deadline for what cannot be answered in time."""


@dataclass
class GeneratorRig(Rig):
    """``generator``, started and given weight version 0, and a ``client`` to it. ``sampling`` are the two profiles."""

    generator: Generator
    client: GeneratorClient
    sampling: dict[Purpose, Sampling]
    requests: Any = field(default_factory=itertools.count)

    @property
    def mode(self) -> Literal["drain", "keep"]:
        """A way to pause that it declares."""
        modes = self.descriptor.capabilities.refit
        assert modes & {"drain", "keep"}, "capabilities.refit names neither drain nor keep"
        return "drain" if "drain" in modes else "keep"

    async def refit(self, version: int) -> None:
        """Weights of this version, those that ``tiny.make_tensors(version)`` gives."""
        await self.generator.pause(self.mode)
        await hand_over(self.generator, self.world, tiny.make_tensors(version), version)
        await self.generator.resume()

    async def ask(self, stream: str, ids: Ids | None = None, *, purpose: Purpose = Purpose.TRAIN,
                  affinity: str = "train-1", deadline_s: float = 30.0, request: str | None = None,
                  **changes: Any) -> Sample:
        """One request; ``stream`` is a rollout and a turn, ``changes`` are to the sampling profile."""
        sampling = replace(self.sampling[purpose], **changes)
        request = request or f"{stream}#{next(self.requests)}"
        try:
            return await self.client.generate(request, prompt() if ids is None else ids, sampling, stream=stream,
                                              affinity=affinity, deadline_s=deadline_s)
        finally:
            await self.client.release(stream.rpartition("/")[0])

    async def ask_many(self, name: str, **how: Any) -> list[Sample]:
        return await asyncio.gather(*(self.ask(f"{name}{number}/0", **how) for number in range(MANY)))

    async def difference(self, ids: Ids, sample: Sample) -> float:
        """How far a sample's log-probabilities are from those that the probe gives for the same tokens."""
        probed, = await self.generator.probe([np.concatenate([ids, sample.ids]).astype(np.int32)])
        return float(np.abs(np.asarray(probed)[len(ids):] - sample.log_probabilities).max(initial=0.0))


class GeneratorSuite(Suite):
    """Demands on generators."""

    role = Role.GENERATOR

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[GeneratorRig]:
        sampling = world.sampling(rig.descriptor.capabilities.sampling)
        async with world.fabric() as fabric:
            generator: Generator = world.make(rig.descriptor, rig.config, fabric, _shared(world, sampling))
            try:
                await generator.start()
                remotes = [await fabric.connect(address) for address in generator.addresses()]
                client: GeneratorClient = load_object(rig.descriptor.client or "")(remotes)
                made = GeneratorRig(**vars(rig), generator=generator, client=client, sampling=sampling)
                assert SAFETENSORS in rig.descriptor.capabilities.receives, (
                    f"every generator takes weights over {SAFETENSORS}, whatever faster ways it has")
                await made.refit(0)
                yield made
            finally:
                await generator.close()

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
                _check_form(sample)
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
            assert await rig.difference(ids, sample) <= BOUND

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
            assert np.abs(probed - reference.log_probabilities(ids, tiny.make_tensors(version))).max() <= BOUND

    @demand
    async def test_the_probe_looks_at_each_sequence_alone(self, rig: GeneratorRig) -> None:
        """A number for each token, 0 for the first, the same in whatever company and however often asked."""
        sequences = [prompt(seed, length) for seed, length in ((1, 30), (2, 5), (3, 12))]
        together = await rig.generator.probe(sequences)
        for ids, values in zip(sequences, together, strict=True):
            assert np.asarray(values).shape == ids.shape and values[0] == 0 and np.isfinite(values).all()
            alone, = await rig.generator.probe([ids])
            np.testing.assert_allclose(alone, values, atol=BOUND)

    @demand
    async def test_a_stream_decides_what_is_drawn(self, rig: GeneratorRig) -> None:
        """The same stream gives the same tokens, where that is promised; other streams give others."""
        first = await rig.ask_many("stream")
        assert len({tuple(sample.ids) for sample in first}) > 1, "all streams draw the same"
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
        assert await rig.difference(second, sample) <= BOUND

    @demand
    async def test_new_weights_leave_no_cache_behind(self, rig: GeneratorRig) -> None:
        """After ``receive`` every token is sampled from the new weights alone, also where the prompt was cached."""
        ids = prompt(8, 40)
        await rig.ask("before/0", ids)
        old, = await rig.generator.probe([ids])
        await rig.refit(1)
        new, = await rig.generator.probe([ids])
        assert np.abs(np.asarray(new) - np.asarray(old)).max() > BOUND, "the probe still answers with the old weights"
        for sample in await rig.ask_many("after", ids=ids):
            assert {version for _, version in sample.versions} == {1}
            assert await rig.difference(ids, sample) <= BOUND

    @demand
    async def test_nothing_is_admitted_while_paused(self, rig: GeneratorRig) -> None:
        """In each mode it declares: a request made during a pause is answered after it."""
        for mode in _modes(rig):
            await rig.generator.pause(mode)
            waiting = asyncio.ensure_future(rig.ask(f"{mode}-waits/0"))
            await asyncio.sleep(0.1)
            assert not waiting.done(), f"a request was answered during a pause ({mode})"
            await rig.generator.resume()
            _check_form(await waiting)

    @demand
    async def test_draining_waits_for_what_runs(self, rig: GeneratorRig) -> None:
        """When ``pause("drain")`` returns, what was running has been answered, under the weights it began with."""
        rig.needs("drain" in rig.descriptor.capabilities.refit, "it does not declare drain")
        running = asyncio.ensure_future(rig.ask_many("drained"))
        await asyncio.sleep(0.05)
        await rig.generator.pause("drain")
        await hand_over(rig.generator, rig.world, tiny.make_tensors(1), 1)
        await rig.generator.resume()
        for sample in await running:
            _check_form(sample)
            assert len({version for _, version in sample.versions}) == 1

    @demand
    async def test_keeping_goes_on_under_new_weights(self, rig: GeneratorRig) -> None:
        """A request that a refit interrupts says which of its tokens came from which version, oldest first."""
        rig.needs("keep" in rig.descriptor.capabilities.refit, "it does not declare keep")
        running = asyncio.ensure_future(rig.ask_many("kept"))
        await asyncio.sleep(0.05)
        await rig.generator.pause("keep")
        await hand_over(rig.generator, rig.world, tiny.make_tensors(1), 1)
        await rig.generator.resume()
        for sample in await running:
            _check_form(sample)
            versions = [version for _, version in sample.versions]
            assert versions == sorted(set(versions)) and set(versions) <= {0, 1}
        assert {version for _, version in (await rig.ask("later/0")).versions} == {1}

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
        _check_form(await neighbour)
        _check_form(await rig.ask("successor/0"))

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
        _check_form(await rig.ask("next/0"))

    @demand
    async def test_other_sampling_is_refused(self, rig: GeneratorRig) -> None:
        """A request is sampled as training or validation says, or it is an error: a value that silently did something
        else would train on the wrong distribution."""
        changes: list[dict[str, Any]] = [{"temperature": 0.31}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.4},
                                         {"repetition_penalty": 1.3}]
        for change in changes:
            await raised(rig.ask("odd/0", **change))
        _check_form(await rig.ask("next/0"))

    @demand
    async def test_weights_that_never_come_are_an_error(self, rig: GeneratorRig) -> None:
        """``receive`` gives up at the transfer's deadline, and the next transfer works."""
        specs = specs_of(tiny.make_tensors())
        await rig.generator.pause(rig.mode)
        await raised(rig.generator.receive(transfer_of(rig.world, specs, version=1, deadline_s=SOON_S)))
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
        _check_form(await rig.ask("next/0"))

    @demand
    async def test_a_restarted_engine_waits_for_weights(self, rig: GeneratorRig) -> None:
        """It has none until the next ``receive``, so it must not sample; after that it serves as before."""
        await rig.generator.restart(0)
        await raised(rig.ask("early/0", deadline_s=SOON_S))
        await rig.refit(3)
        assert {version for _, version in (await rig.ask("next/0")).versions} == {3}

    @demand
    async def test_closing_twice_is_fine(self, rig: GeneratorRig) -> None:
        """Also before a start, as a run that fails early does."""
        await rig.generator.close()
        await rig.generator.close()
        async with rig.world.fabric() as fabric:
            await rig.world.make(rig.descriptor, rig.config, fabric, _shared(rig.world, rig.sampling)).close()


def prompt(seed: int = 0, length: int = 24) -> Ids:
    """Random bytes, the same for the same arguments."""
    return np.random.RandomState(seed).randint(0, 256, length).astype(np.int32)


def _modes(rig: GeneratorRig) -> list[Literal["drain", "keep"]]:
    modes: tuple[Literal["drain", "keep"], ...] = ("drain", "keep")
    return [mode for mode in modes if mode in rig.descriptor.capabilities.refit]


def _shared(world: World, sampling: dict[Purpose, Sampling]) -> dict[str, Any]:
    return {"loss": world.loss, "limits": world.limits, "sampling": sampling, "transport": SAFETENSORS}


def _check_form(sample: Sample) -> None:
    assert sample.ids.dtype == np.int32 and len(sample.ids) >= 1
    assert ((sample.ids >= 0) & (sample.ids < tiny.VOCABULARY)).all()
    assert sample.log_probabilities.shape == sample.ids.shape
    assert np.isfinite(sample.log_probabilities).all() and (sample.log_probabilities <= 1e-6).all()
    assert sum(count for count, _ in sample.versions) == len(sample.ids)
    assert all(count > 0 for count, _ in sample.versions)
