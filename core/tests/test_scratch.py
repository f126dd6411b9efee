"""Temporary folders: removed by their owner or by whoever comes after it, never under a living one."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_bench.scratch import Scratch, sweep

HOLDER = """
import os, sys
from grpo_bench.scratch import Scratch
scratch = Scratch()
(scratch.path / "deep").mkdir()
(scratch.path / "deep" / "file").write_text("left")
print(scratch.path, flush=True)
sys.stdin.read()
os._exit(9)
"""


@pytest.fixture
def place(temporary, tmp_path_factory, monkeypatch):
    tmp_path_factory.getbasetemp()  # or pytest would put its own folders there
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


def test_a_folder_is_there_until_it_is_removed(place):
    scratch = Scratch()
    (scratch.path / "file").write_text("x")
    assert scratch.path.parent == place
    sweep(place)
    assert (scratch.path / "file").exists()
    scratch.remove()
    scratch.remove()
    assert not list(place.iterdir())


def test_what_an_ended_process_left_goes_with_the_next_one_that_starts_and_not_before(place):
    env = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
                          text=True) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        Scratch().remove()
        assert (left / "deep" / "file").exists()
    Scratch().remove()
    assert not left.exists()


def test_a_shared_folder_is_there_until_the_last_of_its_holders_removes_it(place):
    first = Scratch()
    second = Scratch(shared=first.path)
    assert second.path == first.path
    first.remove()
    sweep(place)
    assert second.path.exists()
    second.remove()
    assert not list(place.iterdir())


def test_a_shared_folder_that_nobody_holds_any_more_is_made_anew(place):
    old = Scratch()
    old.remove()
    new = Scratch(shared=old.path)
    assert new.path != old.path
    assert new.path.exists()
    new.remove()


def test_nothing_else_is_swept_away(place):
    for name in ("grpo-bench-scratch-mine", "grpo-bench-results", "grpo-bench-scratch-12345678-kept"):
        (place / name).mkdir()
    (place / "target").mkdir()
    (place / "grpo-bench-scratch-abcdefgh").symlink_to("target")
    (place / "grpo-bench-scratch-ijklmnop").write_text("a file")
    before = sorted(place.iterdir())
    sweep(place)
    assert sorted(place.iterdir()) == before


def test_a_folder_swept_between_its_making_and_its_lock_is_made_again(place, monkeypatch):
    made = []
    mkdtemp = Scratch.__init__.__globals__["tempfile"].mkdtemp

    def swept_once(**kwargs):
        made.append(mkdtemp(**kwargs))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr("tempfile.mkdtemp", swept_once)
    scratch = Scratch()
    assert [str(scratch.path)] == made[1:]
    scratch.remove()


@pytest.mark.parametrize(("wanted", "free", "in_memory"), [(0, 100, False), (100, 100, True), (101, 100, False)])
def test_it_lies_in_memory_where_there_is_room(place, tmp_path_factory, monkeypatch, wanted, free, in_memory):
    memory = tmp_path_factory.mktemp("memory")
    monkeypatch.setattr("grpo_bench.scratch._MEMORY", memory)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    scratch = Scratch(memory=wanted)
    assert scratch.path.parent == (memory if in_memory else place)
    scratch.remove()
    assert not [*memory.iterdir(), *place.iterdir()]


def test_a_machine_without_a_place_in_memory_has_a_disk(place, monkeypatch):
    monkeypatch.setattr("grpo_bench.scratch._MEMORY", place / "none")
    scratch = Scratch(memory=1)
    assert scratch.path.parent == place
    scratch.remove()


def test_a_full_memory_that_is_the_place_for_temporary_files_too_is_taken_all_the_same(place, monkeypatch):
    monkeypatch.setattr("grpo_bench.scratch._MEMORY", place)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    scratch = Scratch(memory=1)
    assert scratch.path.parent == place
    scratch.remove()


def test_an_orderly_end_takes_it_along_and_that_of_a_child_does_not(place):
    """Workers that are told to end do not sweep: whoever made it cleans up where it can."""
    code = ("import os, sys\nfrom grpo_bench.scratch import Scratch\nmade = Scratch()\n"
            "if (child := os.fork()) == 0: sys.exit()\nos.waitpid(child, 0)\nprint(made.path, made.path.exists())\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "TMPDIR": str(place)})
    path, there = done.stdout.split()
    assert there == "True" and not os.path.exists(path)


def test_who_sweeps_while_another_thread_does_returns_after_it(place, monkeypatch):
    """Or a process that ends next would take the other along, in the middle of a folder."""
    left = place / "grpo-bench-scratch-abcdefgh"
    left.mkdir()
    begun, go_on = threading.Event(), threading.Event()
    remove = shutil.rmtree

    def slow(path, **kwargs):
        begun.set()
        assert go_on.wait(60)
        remove(path, **kwargs)

    monkeypatch.setattr("shutil.rmtree", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sweep, place)
        assert begun.wait(60)
        second = pool.submit(sweep, place)
        at_once = wait([second], timeout=0.2).done
        go_on.set()
        first.result()
        second.result()
    assert not at_once
    assert not left.exists()
