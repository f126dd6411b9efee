"""Whatever stands in a registry or after --set: an exit code and one message, never a traceback."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_bench.cli import main

LINES = st.sampled_from([
    "schema = 1", "schema = 7", "[profiles.x]", "[profiles.base]", "[profiles.base.grpo]", "[profiles.base.trainer]",
    "[[profiles.base.observers]]", "[profiles.x.grpo.loss]", "extends = 'base'", "extends = 'x'", "extends = 3",
    "use = 'steady'", "use = 'mock'", "use = 1", "use = ''", "max_steps = 10", "max_steps = nan", "grpo.loss = 1",
    "validation.sampling = 'x'", "validation = []", "sampling.top_k = 0", "policy.checkpoint = '\\u0000'",
    "policy.checkpoint = \"a\\u0000b\"", "policy = {checkpoint = 'policy', max_context = 64}", "trainer = {}",
    "trainer.use = {}", "trainer.'odd key' = {a = [1]}", "observers = [1, {use = 'x'}]", "seed = -0",
    "rollout.workers = 1e400", "grpo.advantage.clamp = [1, 2, 3]", "grpo.advantage.clamp = [2, 1]",
    "limits = {queue_s = true}", "learning_rate = 1e-3", "policy.checkpoint = 'package:grpo_bench/../..'",
    "policy.checkpoint = 'package:'", "policy.checkpoint = '~nobody/x'",
])
VALUES = st.one_of(st.sampled_from(["1", "true", "nan", "[]", "{}", "'x'", "{use='steady'}", "[[1]]", "1979-05-27"]),
                   st.text(max_size=8))
KEYS = st.one_of(st.sampled_from(["grpo", "grpo.max_steps", "trainer", "trainer.use", "policy.checkpoint", "observers",
                                  "validation.sampling", "refit.transport", "a.b", "seed", "sampling", "extends"]),
                 st.text(max_size=8))


def exit_code(arguments: list[str]) -> int:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = main(arguments)
    assert code == 0 or errors.getvalue().startswith("grpo-bench: ")
    return code


@pytest.fixture
def file(bench) -> Path:
    return bench.folder / "fuzz.toml"


RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(lines=st.lists(LINES, max_size=6), cut=st.integers(0, 24))
def test_mangled_registries(bench, file: Path, lines: list[str], cut: int) -> None:
    good = (bench.folder / "registry.toml").read_text().splitlines()
    file.write_text("\n".join([*good[:cut], *lines, *good[cut:]]))
    assert exit_code(["plan", "--profile", "base", "--json", "--registry", str(file)]) in (0, 2)


@RELAXED
@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_junk_in_a_registry(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert exit_code(["profiles", "show", "laptop", "--registry", str(file)]) in (0, 2)


@RELAXED
@given(key=KEYS, value=VALUES)
def test_overrides(bench, key: str, value: str) -> None:
    assert exit_code(["plan", "--profile", "base", "--json", f"--set={key}={value}"]) in (0, 2)
