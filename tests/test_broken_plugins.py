"""Third-party packages that are broken in some way: who names one gets one line, nobody else notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpo_bench.registry.loading as loading
import grpo_bench.registry.probe as probe
import pytest
from grpo_bench.cli import main

HEAD = "from grpo_bench.contract import Plugin, Role, Settings\n"
HANGS = "import threading\nthreading.Event().wait()\n"


@dataclass(frozen=True)
class Broken:
    """Source of the package, its state in ``plugins check``, and what is said of it there and by ``plan``."""

    source: str
    state: str
    reason: str


def fails(source: str, reason: str) -> Broken:
    return Broken(source, "import failed", reason)


def descriptor(name: str, more: str = "", role: str = "ENVIRONMENT") -> str:
    return f"{HEAD}plugin = Plugin('{name}', Role.{role}, 'odd', Settings, 'a:b'{more})\n"


CASES = {
    "raises": fails("raise ValueError('no luck')\n", "ValueError: no luck"),
    "lacks": fails("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
    "misspelt": fails("x = (\n", "SyntaxError"),
    "exits": fails("raise SystemExit(0)\n", "SystemExit: 0"),
    "ends": fails("import os\nos._exit(0)\n", "its import ended the process with exit code 0"),
    "hangs": fails(HANGS, "its import did not come to an end within"),
    "crashes": fails("import ctypes\nctypes.string_at(0)\n", "its import was killed by SIGSEGV"),
    "aborts": fails("import os\nos.abort()\n", "its import was killed by SIGABRT"),
    "litters": fails("import os, threading\nos.fork() or threading.Event().wait()\nos._exit(4)\n",
                     "its import ended the process with exit code 4"),
    "lost": fails("other = 1\n", "has no attribute 'plugin'"),
    "other": Broken("plugin = 3\n", "API mismatch", "is no plugin descriptor but of type int"),
    "future": Broken(descriptor("future", ", api=99"), "API mismatch", "is written for plugin API 99"),
    "actor": Broken(descriptor("actor", role="AGENT"), "API mismatch", "its descriptor says agent 'actor'"),
    "needy": Broken(descriptor("needy", ", requires=('no-such-distribution>=2',)"), "not installed",
                    "needs no-such-distribution>=2, which is not installed"),
}
"""By the name of the plugin."""


def install(site: Path, name: str, package: str, source: str) -> None:
    """The environment ``name``, in a package and a distribution of its own."""
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text(source)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
                                   "Summary: Odd.\n")
    (info / "entry_points.txt").write_text(f"[grpo_bench.environment]\n{name} = {package}:plugin\n")
    (info / "RECORD").write_text("")


def commands(site: Path, *lines: list[str]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each command, in one process where an import has three seconds to end."""
    code = """
import contextlib, io, json, sys
from grpo_bench.cli import main
import grpo_bench.registry.loading as loading
loading.IMPORT_S = 3.0
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(line)
    print(json.dumps([code, out.getvalue(), error.getvalue()]), flush=True)
"""
    folder = site.parent / "work"
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *(item for item in sys.path if item)]),
           "XDG_CONFIG_HOME": str(site.parent / "config"), "XDG_CACHE_HOME": str(site.parent / "cache")}
    done = subprocess.run([sys.executable, "-c", code, json.dumps(lines)], capture_output=True, text=True, timeout=300,
                          env=env, cwd=folder, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the import path with all the broken packages in it."""
    found = tmp_path_factory.mktemp("broken") / "site"
    for name, case in CASES.items():
        install(found, name, f"odd_{name}", case.source)
    return found


@pytest.fixture(scope="module")
def planned(site: Path) -> dict[str, tuple[int, str, str]]:
    """What ``plan`` says to a profile that names each."""
    lines = [["plan", "--profile", "mock", "--set", f"environment.use={name}"] for name in CASES]
    return dict(zip(CASES, commands(site, *lines), strict=True))


@pytest.fixture(scope="module")
def checked(site: Path) -> dict[str, dict[str, Any]]:
    """What ``plugins check`` says of each when it checks all."""
    (code, out, error), = commands(site, ["plugins", "check", "--json", "--timeout", "3"])
    assert (code, error) == (1, "")
    return {item["name"]: item for item in json.loads(out) if item["role"] == "environment"}


@pytest.mark.parametrize("name", CASES)
def test_who_names_it_gets_one_line(planned: dict[str, tuple[int, str, str]], name: str) -> None:
    code, out, error = planned[name]
    message, *rest = error.splitlines()
    assert (code, out) == (2, "")
    assert message.startswith("grpo-bench: ") and CASES[name].reason in message and name in message
    assert all(line.startswith("  hint: ") for line in rest) and len(rest) <= 1


@pytest.mark.parametrize("name", CASES)
def test_the_check_says_what_is_wrong(checked: dict[str, dict[str, Any]], name: str) -> None:
    assert checked[name]["state"] == CASES[name].state
    assert CASES[name].reason in checked[name]["reason"]


def test_nobody_else_notices(site: Path, checked: dict[str, dict[str, Any]]) -> None:
    assert checked["mock"]["state"] == checked["minirepair"]["state"] == "ok"
    short = ["grpo.max_steps=2", "validation.metric=off", "validation.target=off"]
    results = commands(site, ["plugins", "list"], ["profiles", "list"], ["plan", "--profile", "mock"],
                       ["run", "--profile", "mock", "--json", *(item for one in short for item in ("--set", one))])
    assert [(code, error) for code, _, error in results] == [(0, "")] * 4
    assert all(f"odd-{name} 1.0" in results[0][1] for name in CASES)
    assert json.loads(results[-1][1].splitlines()[-1])["status"] == "completed"


def test_a_broken_plugin_has_no_demands_to_meet(site: Path) -> None:
    (code, out, _), = commands(site, ["plugins", "check", "crashes", "--json"])
    found, = json.loads(out)
    assert (code, found["state"], found["demands"]) == (1, "import failed", [])


def test_two_packages_with_one_name(tmp_path: Path) -> None:
    for package in ("odd_one", "odd_two"):
        install(tmp_path / "site", "odd", package, descriptor("odd"))
    checked, planned, listed = commands(
        tmp_path / "site", ["plugins", "check", "odd", "--json"],
        ["plan", "--profile", "mock", "--set", "environment.use=odd"], ["plugins", "list"])
    assert checked[0] == 1 and {item["state"] for item in json.loads(checked[1])} == {"duplicate"}
    assert planned[0] == 2 and "comes from several distributions: odd-one, odd-two" in planned[2]
    assert listed[1].count("DUPLICATE") == 2


def test_a_slow_import_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "odd", "odd_slow", HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe, "NOTICE_S", 0.2)
    monkeypatch.setattr(loading, "IMPORT_S", 0.5)
    assert main(["plugins", "show", "odd"]) == 2
    notice, error, _ = capsys.readouterr().err.splitlines()
    assert notice == "grpo-bench: still importing environment 'odd' of odd-slow 1.0, for 0.5 s at most"
    assert "its import did not come to an end within 0.5 s" in error


def test_disabled_plugins(tmp_path: Path) -> None:
    registry = tmp_path / "work" / "registry.toml"
    registry.parent.mkdir()
    registry.write_text('schema = 1\n\ndisabled = [\n    "agent:toolcall",\n    "environment:mock",\n]\n')
    listed, planned, checked = commands(
        tmp_path / "site", ["plugins", "list", "--json"], ["plan", "--profile", "mock"],
        ["plugins", "check", "--json", "--role", "environment"])
    states = {(item["role"], item["name"]): item["state"] for item in json.loads(listed[1])}
    assert (states["environment", "mock"], states["agent", "mock"]) == ("disabled", "installed")
    assert planned[0] == 2 and f"environment 'mock' is disabled by {registry}:5" in planned[2]
    assert checked[0] == 0
    assert {item["name"]: item["state"] for item in json.loads(checked[1])}["mock"] == "disabled"


@pytest.mark.parametrize(("value", "message"), [
    ('"environment:mock"', 'disabled: should be a list, as in ["environment:acme"]'),
    ('["agent:mock", "enviroment:mock"]', "disabled[1]: should have the form \"role:name\", got 'enviroment:mock'"),
    ('["environment"]', "disabled[0]: should have the form"), ("[3]", "disabled[0]: should have the form"),
])
def test_disabled_is_a_list_of_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("registry.toml").write_text(f"schema = 1\ndisabled = {value}\n")
    assert main(["plan", "--profile", "mock"]) == 2
    said = capsys.readouterr().err
    assert message in said and "registry.toml:2]" in said
    assert main(["plugins", "list"]) == 0


@pytest.mark.parametrize("text", [
    b"[console_scripts]\nfoo\n", b"[grpo_bench.environment]\nfoo\n", b"[grpo_bench.environment]\n\xff = a:b\n"])
def test_metadata_that_cannot_be_read_keeps_nothing_from_working(tmp_path: Path, text: bytes) -> None:
    site = tmp_path / "site"
    info = site / "junk-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: junk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_bytes(text)
    outcomes = commands(site, ["plugins", "list"], ["plugins", "check"], ["profiles", "list"],
                        ["plan", "--profile", "mock"])
    assert [(code, error) for code, _, error in outcomes] == [(0, "")] * 4


def test_what_an_import_prints_is_not_in_the_way(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "loud", "odd_loud", "print('hello')\n" + descriptor("loud"))
    ((code, out, error),) = commands(site, ["plugins", "show", "loud", "--json"])
    assert (code, error) == (0, "hello\n")
    assert json.loads(out)[0]["name"] == "loud"
