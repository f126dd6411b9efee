"""For every test of the repository: property tests are bounded by examples, never by time, and SIGINT interrupts.

Tests of real vLLM or Megatron are marked ``real(NAME, ...)`` with the environments they need. Without ``--real`` they
are skipped, each with that reason; with it, an environment that is not built ends the session before any test.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repository", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repository")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real", action="store_true", help="run the tests that need environments of their own; see "
                     "`grpo-bench env list`")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real(*names): needs these environments of workers; runs under --real only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs = {item: _environments(item) for item in items if item.get_closest_marker("real") is not None}
    if config.getoption("--real"):
        _check_built(sorted({name for names in needs.values() for name in names}))
        return
    for item, names in needs.items():
        plural = "s" if len(names) > 1 else ""
        item.add_marker(pytest.mark.skip(reason=f"needs environment{plural} {', '.join(names)}: make test-real"))


def _environments(item: pytest.Item) -> list[str]:
    names = sorted({name for mark in item.iter_markers("real") for name in mark.args})
    if not names:
        raise pytest.UsageError(f"{item.nodeid}: the mark real names no environment")
    return names


def _check_built(names: list[str]) -> None:
    from grpo_bench.contract import PlanError
    from grpo_bench.registry.envs import built, named

    try:
        missing = [name for name in names if built(named(name)) is None]
    except PlanError as error:
        raise pytest.UsageError(error.message) from None
    if missing:
        raise pytest.UsageError(f"not built: {', '.join(missing)}; run `grpo-bench env build {' '.join(missing)}`, or "
                                "`make test-real`, which does")


@pytest.fixture(scope="session")
def environment_python() -> Callable[[str], str]:
    """``environment_python("vllm")`` is the interpreter of that built environment."""
    from grpo_bench.registry.envs import locate, named

    return lambda name: locate(named(name)).interpreter
