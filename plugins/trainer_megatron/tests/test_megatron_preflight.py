"""What is looked at before a run: the environment of the ranks, and the policy as an earlier run converted it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import Finding, PolicyFacts, PreflightContext
from grpo_bench_trainer_megatron import MegatronTrainerConfig, cache_note
from grpo_bench_trainer_megatron.preflight import preflight

STACK = {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2", "torch": "2.13.0"}
INVENTORY = {"versions": {"python": "3.12.1", **STACK}, "features": {"transformer_engine": True, "apex": False},
             "device": {"type": "cuda", "names": ["GB300"] * 4, "memory": [2**38] * 4}}


class Place:
    """A policy and a cache."""

    def __init__(self, folder: Path) -> None:
        self.policy, self.cache = folder / "policy", folder / "cache"
        self.policy.mkdir()
        (self.policy / "config.json").write_text("{}")
        (self.policy / "model.safetensors").write_bytes(b"weights")

    def convert(self, **versions: str) -> Path:
        """What a run leaves behind."""
        mine = cache_note.fingerprint(self.policy, "bfloat16", {**STACK, **versions})
        place = cache_note.place_of(self.cache, mine)
        (place / cache_note.WEIGHTS).mkdir(parents=True)
        (place / cache_note.WEIGHTS / "part").write_bytes(b"converted")
        cache_note.seal(place, mine)
        return place

    def found(self, *, inventory: Any = INVENTORY, vocab_size: int = 9,
              weights: int | None = 1000) -> dict[str, Finding]:
        site: Any = SimpleNamespace(inventory=inventory, policy=PolicyFacts(self.policy, 64, vocab_size))
        facts = {"trainer": {} if weights is None else {"weights_bytes": weights}}
        context = PreflightContext(site=site, settings={}, facts=facts, provenance={}, runs=Path(),
                                   say=lambda line: None, digests=lambda files, algorithm="sha256": {})
        config = MegatronTrainerConfig(cache=str(self.cache), precision="bfloat16")
        return {finding.rule: finding for finding in preflight(config, context)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_policy_that_this_stack_converted(place) -> None:
    converted = place.convert()
    found = place.found()
    assert all(finding.ok for finding in found.values())
    assert found["converted policy"].message == (
        f"{converted} is the policy's, by megatron-core 0.19.2, megatron-bridge 0.6.2, torch 2.13.0")
    assert found["device"].message == "4 x GB300 of 256.0 GiB; transformer_engine"


def test_a_policy_that_another_stack_converted(place) -> None:
    place.convert(**{"megatron-core": "0.19.0"})
    wrong = place.found()["converted policy"]
    assert (wrong.ok, wrong.unknown, wrong.key) == (False, False, "trainer.cache")
    assert "was made with versions megatron-core 0.19.0" in wrong.message
    assert "this run has megatron-core 0.19.2" in wrong.message
    assert "name another in trainer.cache" in wrong.fix


def test_a_converted_policy_that_is_damaged(place) -> None:
    (place.convert() / cache_note.WEIGHTS / "part").write_bytes(b"convertet")
    assert "is damaged" in place.found()["converted policy"].message


def test_another_policy_has_a_place_of_its_own(place) -> None:
    place.convert()
    (place.policy / "model.safetensors").write_bytes(b"others")
    found = place.found()["converted policy"]
    assert found.ok
    assert found.message.startswith(f"none in {place.cache}: the first run makes it while it starts, of 0.0 MiB; ")


def test_no_room_for_converting(place, monkeypatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=1, f_frsize=999))
    assert not place.found()["converted policy"].ok
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=1, f_frsize=1000))
    assert place.found()["converted policy"].ok
    assert place.found(weights=None)["converted policy"].unknown


def test_a_cache_that_cannot_be_written(place, monkeypatch) -> None:
    assert place.found()["cache"].ok
    assert not place.cache.exists()
    place.cache.write_text("a file")
    wrong = place.found()["cache"]
    assert (wrong.ok, wrong.message) == (False, f"{place.cache} cannot be written by this user")


@pytest.mark.parametrize(("lacks", "said"), [({"inventory": {}}, "the ranks' environment"),
                                             ({"vocab_size": 0}, "the policy's checkpoint")])
def test_what_cannot_be_known_is_said(place, lacks, said) -> None:
    found = place.found(**lacks)
    assert found["converted policy"].unknown
    assert found["converted policy"].message == f"not looked for in {place.cache}, without {said}"
    assert found["device"].unknown == ("inventory" in lacks)
