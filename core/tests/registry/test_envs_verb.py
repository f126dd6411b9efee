"""``grpo-bench env`` as a user meets it, builders that are cut off, and two of them at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_bench.cli import main
from grpo_bench.registry.envs import built, held, named, places

SLOW = 'schema = 1\npython = ">=3.11"\nsteps = [{packages = ["slow==1.0"]}]\n'
LIMIT_S = 600.0


class Builder:
    """A ``grpo-bench env build`` in a process of its own, whose one step waits until ``go``."""

    def __init__(self, rooms, name: str) -> None:
        self.started, self.go = rooms.workshop.folder / "started", rooms.workshop.folder / "go"
        wheel = rooms.wheel(rooms.workshop.folder, "slow", "HERE = True")
        paths: dict[str, str | Path] = {"SLOW_STARTED": self.started, "SLOW_GO": self.go, "SLOW_WHEEL": wheel,
                                        "PYTHONPATH": rooms.workshop.site}
        command = [sys.executable, "-m", "grpo_bench", "env", "build", name, "--python", rooms.copier]
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, **paths})

    def wait_for_step(self) -> None:
        for _ in range(int(LIMIT_S / 0.05)):
            if self.started.exists():
                return
            assert self.process.poll() is None, self.end()
            threading.Event().wait(0.05)
        raise AssertionError("the step did not begin")

    def line_with(self, words: str) -> str:
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if words in line)

    def end(self) -> tuple[int, str]:
        _, words = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, words


@contextmanager
def builders(rooms, name: str, count: int) -> Iterator[list[Builder]]:
    """The first of them is inside its step when the others start."""
    made = [Builder(rooms, name)]
    try:
        made[0].wait_for_step()
        made += [Builder(rooms, name) for _ in range(count - 1)]
        yield made
    finally:
        made[0].go.touch()
        for builder in made:
            builder.process.kill()
            builder.process.wait()
            if builder.process.stderr is not None:
                builder.process.stderr.close()


def test_two_builders_wait_for_each_other(rooms) -> None:
    rooms.plugin(SLOW, name="shared")
    with builders(rooms, "shared", 2) as (first, second):
        second.line_with("grpo-bench: waiting for another process that is building shared")
        assert built(named("shared")) is None
        first.go.touch()
        assert first.end()[0] == 0
        code, words = second.end()
    assert (code, words.startswith("grpo-bench: environment shared is built: ")) == (0, True)
    assert built(named("shared")) is not None


def test_a_killed_builder_leaves_nothing_that_counts(rooms, capsys: pytest.CaptureFixture[str]) -> None:
    rooms.plugin(SLOW, name="killed")
    with builders(rooms, "killed", 2) as (first, second):
        second.line_with("waiting")
        first.process.kill()
        first.process.wait()
        assert built(named("killed")) is None
        assert row(capsys, "killed")["state"] == "being built"
        first.go.touch()
        code, words = second.end()
    assert (code, "building environment killed" in words) == (0, True)
    assert row(capsys, "killed")["state"] == "built"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_builder_takes_everything_with_it(rooms, number: signal.Signals, code: int) -> None:
    name = f"stopped{code}"
    rooms.plugin(SLOW, name=name)
    with builders(rooms, name, 1) as (builder,):
        builder.process.send_signal(number)
        assert builder.end()[0] == code
        assert [place for place in places() if place.name == name] == []
        with held(name, pytest.fail):
            pass


def row(capsys: pytest.CaptureFixture[str], name: str) -> dict:
    capsys.readouterr()
    assert main(["env", "list", "--json"]) == 0
    return next(found for found in json.loads(capsys.readouterr().out) if found["name"] == name)


def states(capsys: pytest.CaptureFixture[str], name: str) -> list[str]:
    capsys.readouterr()
    assert main(["env", "list", "--json"]) == 0
    return [found["state"] for found in json.loads(capsys.readouterr().out) if found["name"] == name]


def test_the_list_says_what_is_there_and_who_needs_it(rooms, capsys: pytest.CaptureFixture[str]) -> None:
    rooms.plugin(name="listed")
    assert row(capsys, "listed") == {"name": "listed", "needed_by": ["generator roomy"], "state": "not built",
                                     "python": None, "bytes": None, "versions": {}, "path": None}
    place = rooms.pretend("listed")
    assert row(capsys, "listed") == {"name": "listed", "needed_by": ["generator roomy"], "state": "built",
                                     "python": "3.11.0", "bytes": 3_000_000_000, "versions": {"tiny": "1.0"},
                                     "path": str(place.folder)}
    assert main(["env", "list"]) == 0
    text = capsys.readouterr().out
    lines = text[text.index("listed "):].splitlines()
    assert [part.strip() for part in lines[0].split("  ") if part] == ["listed", "built", "3.0 GB", "generator roomy"]
    assert lines[1:3] == ["    python 3.11.0, tiny 1.0", f"    {place.folder}"]


def test_old_builds_stay_until_they_are_removed(rooms, capsys: pytest.CaptureFixture[str]) -> None:
    module = rooms.plugin(name="aged")
    old = rooms.pretend("aged")
    rooms.lock((rooms.workshop.site / module / "env.toml").read_text() + "\n# another\n")
    assert states(capsys, "aged") == ["not built", "stale"]
    new = rooms.pretend("aged")
    assert main(["env", "build", "aged"]) == 0
    assert "1 other build of aged is kept" in capsys.readouterr().err
    assert states(capsys, "aged") == ["built", "stale"]
    assert main(["env", "remove", "aged", "--stale"]) == 0
    assert capsys.readouterr().err == "grpo-bench: 1 build of aged removed\n"
    assert states(capsys, "aged") == ["built"]
    assert new.folder.exists() and not old.folder.exists() and not old.log.exists()
    assert main(["env", "remove", "aged"]) == 0
    assert states(capsys, "aged") == ["not built"]


def test_what_is_unfinished_is_listed_and_removed_as_stale(rooms, capsys: pytest.CaptureFixture[str]) -> None:
    rooms.plugin(name="half")
    place = rooms.pretend("half")
    place.folder.with_name(f"{place.key}.json").unlink()
    assert states(capsys, "half") == ["unfinished"]
    assert main(["env", "remove", "half", "--stale"]) == 0
    assert states(capsys, "half") == ["not built"]


def test_builds_of_plugins_that_are_gone_can_be_removed(rooms, capsys: pytest.CaptureFixture[str]) -> None:
    rooms.plugin(name="orphan")
    rooms.pretend("orphan")
    (rooms.workshop.site / "test_roomy_orphan-1.0.dist-info/entry_points.txt").write_text("")
    rooms.workshop.forget()
    found = row(capsys, "orphan")
    assert (found["state"], found["needed_by"]) == ("stale", [])
    assert main(["env", "remove", "orphan"]) == 0
    assert states(capsys, "orphan") == []


@pytest.mark.parametrize("action", ["build", "remove"])
def test_an_unknown_name_is_answered_with_the_nearest(rooms, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    rooms.plugin(name="solver")
    assert main(["env", action, "solvr"]) == 2
    assert "'solvr'; did you mean 'solver'?" in capsys.readouterr().err


def test_pip_is_told_of_another_index(rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms.plugin('schema = 1\npython = ">=3.11"\nsteps = [{packages = ["rare==1.0"]}]', name="indexed")
    monkeypatch.delenv("PIP_NO_INDEX")
    simple = rooms.workshop.folder / "simple"
    monkeypatch.setenv("PIP_INDEX_URL", (rooms.workshop.folder / "nothing").as_uri())
    (simple / "rare").mkdir(parents=True)
    file = rooms.wheel(simple / "rare", "rare", "HERE = True")
    (simple / "rare/index.html").write_text(f"<a href='{file.name}'>{file.name}</a>")
    assert main(["env", "build", "indexed", "--index", simple.as_uri(), "--python", rooms.copier]) == 0


@pytest.mark.parametrize("action", ["", "build", "list", "remove"])
def test_help_is_plain(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["env", *action.split(), "--help"])
    assert "``" not in capsys.readouterr().out
