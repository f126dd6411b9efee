"""How the kit asks a generator: the rig of its suite, which is trainer and rollout worker at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ..contract import Floats, Generator, GeneratorClient, Ids, Purpose, Sample, Sampling, load_object
from . import tiny
from .suite import Rig
from .transfers import SAFETENSORS, hand_over
from .world import World, configured

MANY = 16


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

    async def refit(self, version: int, *, mode: Literal["drain", "keep"] | None = None, endless: bool = False) -> None:
        """Weights of this version, those that ``tiny.make_tensors(version)`` gives, or ``tiny.make_endless``."""
        await self.generator.pause(mode or self.mode)
        tensors = tiny.make_endless(version) if endless else tiny.make_tensors(version)
        await hand_over(self.generator, self.world, tensors, version)
        await self.generator.resume()

    @asynccontextmanager
    async def another(self, options: Mapping[str, Any] | None = None, **changes: Any) -> AsyncIterator[GeneratorRig]:
        """One more generator, with other options or with ``changes`` to both sampling profiles."""
        sampling = {purpose: replace(own, **changes) for purpose, own in self.sampling.items()}
        config = self.config if options is None else configured(self.descriptor, options)
        plain = Rig(self.world, self.descriptor, config, self.runner)
        async with started(plain, sampling) as rig:
            yield rig

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

    async def difference(self, ids: Ids, sample: Sample, since: int = 0) -> float:
        """How far a sample's log-probabilities are from those that the probe gives for the same tokens, the first
        ``since`` left out."""
        probed, = await self.generator.probe([np.concatenate([ids, sample.ids]).astype(np.int32)])
        return float(np.abs(np.asarray(probed)[len(ids):] - sample.log_probabilities)[since:].max(initial=0.0))

    async def next_token(self, ids: Ids) -> Floats:
        """Log-probability [V] of each token after ``ids``, as the probe has it."""
        probed = await self.generator.probe([np.append(ids, np.int32(token)) for token in range(tiny.VOCABULARY)])
        return np.array([values[-1] for values in probed])


@asynccontextmanager
async def started(rig: Rig, sampling: dict[Purpose, Sampling]) -> AsyncIterator[GeneratorRig]:
    """The rig of a generator that has weight version 0."""
    async with rig.world.fabric() as fabric:
        generator: Generator = rig.world.make(rig.descriptor, rig.config, fabric, shared_of(rig.world, sampling))
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


def prompt(seed: int = 0, length: int = 24) -> Ids:
    """Random bytes, the same for the same arguments."""
    return np.random.RandomState(seed).randint(0, 256, length).astype(np.int32)


def modes(rig: GeneratorRig) -> list[Literal["drain", "keep"]]:
    known: tuple[Literal["drain", "keep"], ...] = ("drain", "keep")
    return [mode for mode in known if mode in rig.descriptor.capabilities.refit]


def shared_of(world: World, sampling: dict[Purpose, Sampling]) -> dict[str, Any]:
    return {"loss": world.loss, "limits": world.limits, "sampling": sampling, "transport": SAFETENSORS}


def check_form(sample: Sample) -> None:
    assert sample.ids.dtype == np.int32 and len(sample.ids) >= 1
    assert ((sample.ids >= 0) & (sample.ids < tiny.VOCABULARY)).all()
    assert sample.log_probabilities.shape == sample.ids.shape
    assert np.isfinite(sample.log_probabilities).all() and (sample.log_probabilities <= 1e-6).all()
    assert sum(count for count, _ in sample.versions) == len(sample.ids)
    assert all(count > 0 for count, _ in sample.versions)
