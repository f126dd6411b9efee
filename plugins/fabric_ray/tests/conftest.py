"""A cluster of four hosts on this machine, two to a network domain; each says that it has four GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.raylets import Raylets


@pytest.fixture(scope="session")
def hosts() -> Iterator[Raylets]:
    raylets = Raylets({"n0": "d0", "n1": "d0", "n2": "d1", "n3": "d1"})
    try:
        yield raylets
    finally:
        raylets.close()


@pytest.fixture
def cluster(hosts: Raylets, monkeypatch: pytest.MonkeyPatch) -> Raylets:
    """It is the one that a fabric without an address of its own joins."""
    for name, value in hosts.environment.items():
        monkeypatch.setenv(name, value)
    return hosts
