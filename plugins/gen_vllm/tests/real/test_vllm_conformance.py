"""The generator keeps the contract of its role. One engine serves all demands, since starting it takes longer than they
do; those that need another generator, or break this one, start engines of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grpo_bench.testing import GeneratorSuite

pytestmark = pytest.mark.real("vllm")


class TestVllm(GeneratorSuite):
    plugin = "vllm"
    fabric = "local"
    options = {"workers": 1, "kv_cache_gib": 0.1}
    engines_option = "workers"
    timeout_s = 600.0

    @pytest.fixture
    def rig(self, shared: Any) -> Any:
        shared.play(shared.refit(0))  # whatever the demand before left
        return shared


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with TestVllm().prepared(tmp_path_factory.mktemp("conformance")) as rig:
        yield rig
