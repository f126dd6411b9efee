"""Both fabrics, ready to run a test's coroutine in; worker targets are in ``fabric_targets.py`` beside this file."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from grpo_bench.contract import GroupSpec, Placement
from grpo_bench.fabric import InlineFabric, LocalFabric


class FixedClock:
    def monotonic(self) -> float:
        return 0.0

    def now_utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


@pytest.fixture(autouse=True)
def _targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def spec() -> Callable[..., GroupSpec]:
    def make(name: str = "a", target: str = "fabric_targets:Worker", workers: int = 1, config: Any = None,
             threads: int = 1, env: Any = None, gpus: int = 0, **settings: Any) -> GroupSpec:
        return GroupSpec(name, target, config, Placement(workers, threads, gpus=gpus, env=env or {}), **settings)
    return make


def _run(make: Callable[..., Any], body: Callable[[Any], Any], **settings: Any) -> Any:
    async def main() -> Any:
        fabric = make(**settings)
        try:
            return await body(fabric)
        finally:
            await fabric.close()
    return asyncio.run(main())


@pytest.fixture
def in_local(tmp_path: Path) -> Callable[..., Any]:
    return partial(_run, partial(LocalFabric, tmp_path, FixedClock(), structlog.get_logger()), grace_s=30.0)


@pytest.fixture
def in_inline() -> Callable[..., Any]:
    return partial(_run, lambda: InlineFabric(FixedClock(), structlog.get_logger(), serialise=True))


@pytest.fixture
def until() -> Callable[..., Any]:
    async def poll(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not await condition():  # noqa: ASYNC110 (another process changes it)
                await asyncio.sleep(0.005)
    return poll


@pytest.fixture(params=["inline", "local"])
def in_fabric(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.getfixturevalue(f"in_{request.param}")
