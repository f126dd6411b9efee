"""Whatever stands in a registry or after --set: an exit code and one message with its place, never a traceback."""

from __future__ import annotations

import io
import json
import math
import typing
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from grpo_bench.cli import main
from grpo_bench.contract import Role
from grpo_bench.registry import Profile, build

LINES = st.sampled_from([
    "schema = 1", "schema = 7", "[profiles.x]", "[profiles.base]", "[profiles.base.grpo]", "[profiles.base.trainer]",
    "[[profiles.base.observers]]", "[profiles.x.grpo.loss]", "extends = 'base'", "extends = 'x'", "extends = 3",
    "use = 'steady'", "use = 'mock'", "use = 1", "use = ''", "max_steps = 10", "max_steps = nan", "grpo.loss = 1",
    "validation.sampling = 'x'", "validation = []", "sampling.top_k = 0", "policy.checkpoint = '\\u0000'",
    "policy.checkpoint = \"a\\u0000b\"", "policy = {checkpoint = 'policy', max_context = 64}", "trainer = {}",
    "trainer.use = {}", "trainer.'odd key' = {a = [1]}", "observers = [1, {use = 'x'}]", "seed = -0",
    "rollout.workers = 1e400", "grpo.advantage.clamp = [1, 2, 3]", "grpo.advantage.clamp = [2, 1]",
    "limits = {queue_s = true}", "learning_rate = 1e-3", "policy.checkpoint = 'package:grpo_bench/../..'",
    "policy.checkpoint = 'package:'", "policy.checkpoint = '~nobody/x'", "policy.checkpoint = 'package:__main__/x'",
])
SCALARS = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "1e400", "-0.0", "true", "false", "0", "-1", "1", "2", "4096", "65537",
                     "9223372036854775807", "9223372036854775808", "0x7f", "1e-9", "0.5", "'off'", "''", "'steady'",
                     "1979-05-27", "07:32:00", "[]", "{}", "[[1]]", "{use = 'steady'}", "[{}]", '"\\u0000"']),
    st.integers().map(str), st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=5).map(json.dumps))
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
                   st.text(max_size=8))


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys_of(inner, f"{prefix}{name}.")


KNOWN = st.sampled_from([*keys_of(Profile), *(f"{role.value}.use" for role in Role), "trainer.learning_rate",
                         "trainer.names", "trainer.mode", "ruleset", "extends", "profiles.base.seed", "a.b"])
KEYS = st.one_of(KNOWN, KNOWN, st.tuples(KNOWN, st.text("ab.x'\" ", max_size=4)).map("".join), st.text(max_size=8))
RELAXED = settings(max_examples=60, deadline=None, derandomize=True, database=None,
                   suppress_health_check=[HealthCheck.function_scoped_fixture])


def ends_well(arguments: list[str], place: str) -> None:
    """Exit code 0, or 2 with a message that names ``place``."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = main(arguments)
    said = errors.getvalue()
    assert code in (0, 2), said
    assert "Traceback" not in said
    assert (code == 0) == (said == "")
    assert code == 0 or (said.startswith("grpo-bench: ") and place in said)


@pytest.fixture
def file(bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where to put a registry. Nothing else may have changed in the end."""
    monkeypatch.setattr(build, "distribution_lock", lambda _: {"sources": {}, "distributions": {}})
    path = bench.folder / "fuzz.toml"
    before = known_files(bench.folder)
    yield path
    assert known_files(bench.folder) - {path} == before


def known_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not {"__pycache__", "cache"} & set(path.parts)}


def good(file: Path) -> str:
    return (file.parent / "registry.toml").read_text()


@RELAXED
@given(lines=st.lists(LINES, max_size=6), cut=st.integers(0, 24))
def test_lines_where_they_do_not_belong(file: Path, lines: list[str], cut: int) -> None:
    text = good(file).splitlines()
    file.write_text("\n".join([*text[:cut], *lines, *text[cut:]]))
    ends_well(["plan", "--profile", "base", "--json", "--registry", str(file)], file.name)


@RELAXED
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4))
def test_a_registry_with_changed_bytes(file: Path, edits: list[tuple[float, int, bytes]]) -> None:
    content = bytearray(good(file).encode())
    for where, removed, added in edits:
        at = math.floor(where * len(content))
        content[at:at + removed] = added
    file.write_bytes(content)
    ends_well(["plan", "--profile", "base", "--json", "--registry", str(file)], file.name)


@RELAXED
@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_junk_in_a_registry(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    ends_well(["profiles", "show", "laptop", "--registry", str(file)], file.name)


@settings(RELAXED, max_examples=150)
@given(pairs=st.lists(st.tuples(KNOWN, SCALARS), min_size=1, max_size=3))
def test_values_of_the_wrong_kind_at_known_places(file: Path, pairs: list[tuple[str, str]]) -> None:
    lines = [f"{key} = {value}" for key, value in pairs]
    file.write_text("\n".join([good(file), "[profiles.my]", "extends = 'base'", *lines]))
    ends_well(["plan", "--profile", "my", "--json", "--registry", str(file)], f"{file.name}:")


@settings(RELAXED, max_examples=150)
@given(pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3))
def test_overrides(file: Path, pairs: list[tuple[str, str]]) -> None:
    arguments = [f"--set={key}={value}" for key, value in pairs]
    ends_well(["plan", "--profile", "base", "--json", *arguments], "--set ")
