"""Places to write that are full, read-only or gone, and readers that leave: one line and the right exit code each."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_bench.contract import Kind
from grpo_bench.observers import read_events

SMALL = ("grpo.prompts_per_step=4", "grpo.generations_per_prompt=3", "grpo.max_steps=12", "validation.metric=off",
         "validation.target=off", "checkpoint.period=2")


def command(runs, *overrides, json_output=True):
    sets = [word for item in (*SMALL, *overrides) for word in ("--set", item)]
    return [sys.executable, "-m", "grpo_bench", "run", "--profile", "mock", "--runs", str(runs), *sets,
            *(["--json"] if json_output else [])]


def run(folder, *arguments):
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def disk(tmp_path):
    """``disk(size)`` is an empty file system of that size in memory; needs the right to mount one."""
    mounted = []

    def make(size):
        place = tmp_path / "disk"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], capture_output=True,
                              check=False) if shutil.which("mount") else None
        if done is None or done.returncode:
            pytest.skip("this user may not mount a file system")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("size", ["96k", "192k", "320k", "512k"])
def test_a_disk_that_fills_up_ends_the_run_with_one_line_and_room_lets_it_go_on(tmp_path, disk, size):
    place = disk(size)
    done = run(tmp_path, *command(place))
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line
    assert done.returncode == 1 or (done.returncode == 2 and "choose another place" in line)
    assert done.returncode == 2 or json.loads(done.stdout.splitlines()[-1])["status"] == "failed"
    if done.returncode == 2:
        assert not list(place.iterdir())
        return
    (folder,) = place.iterdir()
    list(read_events(folder))
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    again = run(tmp_path, sys.executable, "-m", "grpo_bench", "resume", str(folder), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["steps"] == 12


def test_a_place_that_is_read_only_is_wrong_input_and_one_line(tmp_path, disk):
    place = disk("1m")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    done = run(tmp_path, *command(place / "runs"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("grpo-bench: cannot write a run folder")
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_folder_that_turns_read_only_cannot_be_resumed_and_says_so(tmp_path, disk):
    place = disk("16m")
    failed = run(tmp_path, *command(place, 'trainer.faults=[{at = "update", kind = "raise", call = 3}]'))
    assert failed.returncode == 1
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    (folder,) = place.iterdir()
    done = run(tmp_path, sys.executable, "-m", "grpo_bench", "resume", str(folder), "--json")
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_folder_that_is_removed_ends_the_run(tmp_path):
    runs = tmp_path / "runs"
    with subprocess.Popen(command(runs, "grpo.max_steps=2000", "checkpoint.period=0"), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        while child.poll() is None and not any(runs.glob("*/trajectories/step-00001.jsonl")):
            time.sleep(0.01)  # noqa: TID251 (another process is waited for)
        shutil.rmtree(runs.rename(tmp_path / "gone"))
        out, err = child.communicate()
    (line,) = err.splitlines()
    assert child.returncode == 1
    assert "events.jsonl: it was removed while the run went on" in line
    assert json.loads(out.splitlines()[-1])["status"] == "failed"


@pytest.mark.parametrize(("override", "code"), [
    ("grpo.max_steps=12", 0), ('trainer.faults=[{at = "update", kind = "raise", call = 9}]', 1)])
@pytest.mark.parametrize("json_output", [True, False])
def test_a_reader_that_leaves_does_not_change_how_a_run_ends(tmp_path, override, code, json_output):
    reading, writing = os.pipe()
    child = subprocess.Popen(command(tmp_path / "runs", override, json_output=json_output), stdout=writing,
                             stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writing)
    if not json_output:
        assert os.read(reading, 4)
    os.close(reading)
    _, err = child.communicate()
    assert child.returncode == code
    assert len(err.splitlines()) == code
    assert "Traceback" not in err
    (folder,) = Path(tmp_path, "runs").iterdir()
    assert list(read_events(folder))[-1].kind == Kind.RUN_ENDED


def test_a_full_stdout_is_one_line_and_a_failure(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "grpo_bench", "plugins", "list"], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "grpo-bench: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_changes_nothing(tmp_path, closed):
    line = shlex.join(command(tmp_path / "runs", "grpo.max_steps=2", "validation.metric=off", "validation.target=off"))
    done = run(tmp_path, "sh", "-c", f"exec {line} {closed}")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert list(read_events(folder))[-1].data["status"] == "completed"
