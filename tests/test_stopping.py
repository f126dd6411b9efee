"""Signals at awkward moments: a run is stopped once, closes in any case, and says so."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from grpo_bench.contract import Kind, Status
from grpo_bench.engine import conduct, execute, make_folder
from grpo_bench.engine.assembly import Assembly
from grpo_bench.engine.clock import run_real
from grpo_bench.engine.stopping import Stops
from grpo_bench.observers import read_events
from grpo_bench.registry import make_plan, resolve


def pause(seconds):
    time.sleep(seconds)  # noqa: TID251 (another process is waited for)


def run_for_real(folder, *overrides, soon=None):
    """Run profile ``mock`` on the real clock; ``soon`` is called once the run is under way."""
    plan = make_plan(resolve("mock", overrides=("grpo.max_steps=1", "validation.max_tasks=1", "validation.period=1",
                                       *overrides), cwd=folder))
    run = make_folder(plan, folder / "runs", datetime.now(UTC))

    async def main(clock, stops):
        if soon is not None:
            asyncio.get_running_loop().call_later(0.05, soon)
        return await conduct(plan, run, clock, stops=stops)

    with Stops() as stops:
        return run_real(lambda clock: main(clock, stops)), list(read_events(run))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_start_up_interrupts_the_run(tmp_path, number):
    outcome, events = run_for_real(tmp_path, 'generator.faults=[{at = "start", kind = "hang"}]',
                                   soon=lambda: os.kill(os.getpid(), number))
    assert outcome.status is Status.INTERRUPTED
    assert (events[-1].kind, events[-1].data["status"]) == (Kind.RUN_ENDED, "interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_while_parts_close_changes_nothing(tmp_path, monkeypatch, number):
    close = Assembly.close

    async def signalled(self):
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
        await close(self)

    monkeypatch.setattr(Assembly, "close", signalled)
    outcome, events = run_for_real(tmp_path, "validation.metric=off", "validation.target=off")
    assert outcome.status is Status.COMPLETED
    assert events[-1].kind == Kind.RUN_ENDED


def test_a_part_that_fails_while_it_is_stopped_does_not_hide_the_interruption(tmp_path, monkeypatch):
    async def failing(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("torn down") from None

    monkeypatch.setattr(Assembly, "start", failing)
    outcome, _ = run_for_real(tmp_path, soon=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert outcome.status is Status.INTERRUPTED


def test_a_second_signal_ends_the_waiting_for_parts_that_do_not_close(tmp_path, monkeypatch):
    async def never(self):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(Assembly, "close", never)
    outcome, events = run_for_real(tmp_path, 'generator.faults=[{at = "start", kind = "hang"}]',
                                   soon=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert outcome.status is Status.INTERRUPTED
    assert (events[-1].kind, events[-1].data["status"]) == (Kind.RUN_ENDED, "interrupted")


def test_a_second_signal_ends_the_waiting_for_work_that_will_not_stop(tmp_path, monkeypatch):
    async def stubborn(self):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(Assembly, "start", stubborn)
    outcome, events = run_for_real(tmp_path, soon=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert outcome.status is Status.INTERRUPTED
    assert events[-1].kind == Kind.RUN_ENDED


STARTED = """
import sys, threading
from grpo_bench.__main__ import script
from grpo_bench.engine.assembly import Assembly
async def stuck(self):
    print("stuck", flush=True)
    for _ in range(6000):
        threading.Event().wait(0.01)
Assembly.start = stuck
sys.argv[1:] = ["run", "--profile", "mock", "--runs", sys.argv[1], "--json"]
script()
"""


def test_a_third_signal_ends_a_process_that_is_stuck_in_one_call(tmp_path):
    command = [sys.executable, "-c", STARTED, str(tmp_path / "runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "stuck\n"
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        _, err = child.communicate()
    assert (child.returncode, err) == (130, "grpo-bench: ended at once\n")


IMPORTING = """
import builtins, os, signal, sys
real = builtins.__import__
def interrupted(name, *rest):
    if name == MODULE:
        os.kill(os.getpid(), NUMBER)
    return real(name, *rest)
builtins.__import__ = interrupted
from grpo_bench.__main__ import script
script()
"""


@pytest.mark.parametrize(("module", "number"), [
    *((module, signal.SIGINT) for module in ("cli", "argparse", "json", "pydantic")), ("pydantic", signal.SIGUSR1)])
def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path, module, number):
    arguments = ["run", "--profile", "mock"]
    program = IMPORTING.replace("MODULE", repr(module)).replace("NUMBER", str(int(number)))
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "grpo-bench: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_stdout_with_its_object_and_stderr_with_one_line(tmp_path, number):
    command = [sys.executable, "-m", "grpo_bench", "run", "--profile", "mock", "--json", "--set",
               'trainer.faults=[{at = "update", kind = "hang"}]']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        while child.poll() is None:
            if any(b'"update"' in file.read_bytes() for file in (tmp_path / "runs").glob("*/events.jsonl")):
                child.send_signal(number)
                break
            pause(0.01)
        out, err = child.communicate()
    (line,) = err.splitlines()
    (found,) = out.splitlines()
    assert (child.returncode, json.loads(found)["status"]) == (130, "interrupted")
    assert line.startswith("grpo-bench: the run was interrupted")
    assert "grpo-bench resume runs/" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_between_the_folder_and_the_run_is_not_lost(tmp_path, monkeypatch, number):
    def stopped(plan, runs, now):
        os.kill(os.getpid(), number)
        return make_folder(plan, runs, now)

    monkeypatch.setattr("grpo_bench.engine.run.make_folder", stopped)
    plan = make_plan(resolve("mock", cwd=tmp_path))
    assert execute(plan, tmp_path / "runs", progress=False, json_output=True) == 130
    (folder,) = (tmp_path / "runs").iterdir()
    assert list(read_events(folder))[-1].data["status"] == "interrupted"
