"""Runs in processes of their own, killed, interrupted and starved: what they say, how they exit, what they leave."""

import os
import random
import signal
from pathlib import Path

import pytest

from grpo_bench.contract import Kind
from grpo_bench.fabric._proc import family, table
from grpo_bench.observers import read_events

from .children import Child, assert_gone, last_object, stepped

MOCK = {"grpo.prompts_per_step": 4, "grpo.generations_per_prompt": 3, "validation.metric": "off",
        "validation.target": "off", "validation.period": 100, "checkpoint.period": 2, "grpo.max_steps": 8}
LOCAL = {**MOCK, "fabric.use": "local"}
SANDBOXES = {**LOCAL, "environment.use": "minirepair", "agent.use": "toolcall", "generator.token_s": 0.002}
LAPTOP = {"trainer.workers": 1, "generator.workers": 1, "grpo.prompts_per_step": 2, "grpo.generations_per_prompt": 2,
          "grpo.max_steps": 3, "validation.metric": "off", "validation.target": "off", "validation.period": 100,
          "validation.at_start": "false", "sampling.max_tokens": 8, "checkpoint.period": 1}
ASYNC = {"schedule.mode": "async", "schedule.max_age": 1, "deterministic": "false"}


@pytest.mark.parametrize("moment", range(3))
def test_nothing_outlives_an_engine_that_is_killed(tmp_path, temporary, moment):
    child = Child(tmp_path, SANDBOXES, "mock", temporary=temporary)
    wanted = random.Random(moment).randrange(3, 90)
    child.until(lambda: child.events() >= wanted)
    processes, folders = family(child.process.pid, table()), child.scratch()
    assert len(processes) > 2
    assert {folder.parent for folder in folders} == {Path("/dev/shm"), temporary}
    child.process.kill()
    child.end()
    assert_gone(processes, folders)
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder)), temporary=temporary).end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err


def test_sandboxes_end_with_engine_and_workers_and_the_next_start_clears_up(tmp_path, temporary):
    child = Child(tmp_path, SANDBOXES, "mock", temporary=temporary)
    child.until(lambda: child.events() >= 20)
    processes, folders = family(child.process.pid, table()), child.scratch()
    workers = child.workers()
    assert any(item.pid not in {worker.pid for worker in workers.values()} for item in processes)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (child.process.pid, *(worker.pid for worker in workers.values())):
            os.kill(pid, number)
    child.end()
    assert_gone(processes, [])
    assert all(folder.exists() for folder in folders)
    other = Child(tmp_path, {**MOCK, "grpo.max_steps": 1}, "mock", runs=tmp_path / "other", temporary=temporary)
    assert other.end()[0] == 0
    assert not any(folder.exists() for folder in folders)
    assert not list(temporary.glob("grpo-bench-scratch*"))


@pytest.mark.parametrize(("rank", "role"), [("1.sock", "trainer"), ("2.sock", "generator")])
def test_a_lost_worker_of_the_real_parts_ends_the_run_with_its_name(tmp_path, rank, role):
    child = Child(tmp_path, {**LAPTOP, "limits.engine_restarts": 0}, "laptop")
    child.until(lambda: stepped(child))
    processes, folders = family(child.process.pid, table()), child.scratch()
    os.kill(child.workers()[rank].pid, signal.SIGKILL)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (1, "failed")
    (line,) = err.splitlines()
    for part in (f"plugin torch, role {role}", "step ", "was ended by SIGKILL", f"grpo-bench resume {child.folder}"):
        assert part in line
    assert_gone(processes, folders)
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err


@pytest.mark.parametrize("schedule", [{}, ASYNC, {**ASYNC, "schedule.in_flight": "keep"}],
                         ids=["sync", "drain", "keep"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_killed_engine_of_the_real_parts_comes_back_with_the_weights(tmp_path, schedule, workers):
    child = Child(tmp_path, {**LAPTOP, **schedule, "rollout.workers": workers}, "laptop")
    child.until(lambda: stepped(child))
    os.kill(child.workers()["2.sock"].pid, signal.SIGKILL)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    events = list(read_events(child.folder))
    (lost,) = [event.data for event in events if event.kind == Kind.ALARM and event.data["name"] == "engine_lost"]
    assert (lost["engine"], lost["cause"].startswith("worker process generator-0 was ended by SIGKILL")) == (0, True)
    assert {event.data["version"] for event in events if event.kind == Kind.REFIT} == {0, 1, 2, 3}
    assert [event.data["version"] for event in events if event.kind == Kind.STEP] == [1, 2, 3]
    ages = [(event.step or 0) - version for event in events if event.kind == Kind.ROLLOUT
            for version in event.data["versions"]]
    assert ages and set(ages) <= ({0, 1, 2} if schedule else {1})
    assert all(event.data["probe_difference"] < 1e-4 for event in events if event.kind == Kind.REFIT)
    failed = [event.data for event in events if event.kind == Kind.ROLLOUT and event.data["cause"] is not None]
    assert {data["cause"] for data in failed} <= {"worker" if workers == 0 else "generator"}


def test_an_engine_that_dies_with_its_generator_again_and_again_names_it(tmp_path):
    settings = {**LOCAL, "limits.engine_restarts": 1,
                "generator.faults": '[{at = "generate", kind = "die", step = 1}]'}
    child = Child(tmp_path, settings, "mock")
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (1, "failed")
    for part in ("engine 0 of the generator broke down: worker process generator-0 ended with exit code 70",
                 "plugin mock, role generator, step 2", "limits.engine_restarts = 1"):
        assert part in err


def test_a_generator_beside_the_rollout_workers_that_dies_is_named_in_time(tmp_path):
    settings = {**LOCAL, "rollout.workers": 1, "limits.engine_restarts": 9,
                "generator.faults": '[{at = "generate", kind = "die", step = 1}]'}
    child = Child(tmp_path, settings, "mock")
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (1, "failed")
    for part in ("12 of 12 rollouts", "12 generator", "plugin mock, role generator, task mock-train-0004, step 2"):
        assert part in err
    events = list(read_events(child.folder))
    lost = [event.data for event in events if event.kind == Kind.ROLLOUT and event.data["cause"] == "generator"]
    assert len(lost) == 36
    assert all(data["reward"] is None for data in lost)


def test_a_rollout_worker_that_dies_is_replaced_and_its_rollouts_are_counted(tmp_path):
    settings = {**LOCAL, "rollout.workers": 1, "environment.faults": '[{at = "open", kind = "die", call = 30}]',
                "limits.concurrency": 4}
    child = Child(tmp_path, settings, "mock")
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    events = list(read_events(child.folder))
    lost = [event.data for event in events if event.kind == Kind.ROLLOUT and event.data["cause"] == "worker"]
    assert lost and all(data["reward"] is None and "ended with exit code 70" in data["message"] for data in lost)
    assert "worker_lost" in [event.data["name"] for event in events if event.kind == Kind.ALARM]


def test_a_trainer_of_the_engines_own_process_that_dies_leaves_a_run_to_resume(tmp_path):
    settings = {**LOCAL, "trainer.faults": '[{at = "update", kind = "die", call = 4}]', "grpo.max_steps": 6}
    child = Child(tmp_path, settings, "mock")
    child.until(lambda: len(child.workers()) == 1)
    processes = family(child.process.pid, table())
    assert child.end()[0] == 70
    assert_gone(processes, [])
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert code == 70
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert (code, last_object(out).get("steps")) == (0, 6), err


def test_a_worker_that_hangs_is_shown_with_its_stacks_and_ends_in_time(tmp_path):
    settings = {**LOCAL, "generator.faults": '[{at = "generate", kind = "hang"}]', "limits.stall_report_s": 0.5,
                "limits.request_s": 3, "limits.rollout_retries": 0}
    child = Child(tmp_path, settings, "mock", json_output=False)
    code, out, _ = child.end()
    assert code == 1
    stall = next(event.data for event in read_events(child.folder) if event.kind == Kind.STALL
                 and event.data["waiting"]["phase"] == "rollout")
    assert "sampler.py" in stall["stacks"]["generator-0"]
    assert (stall["waiting"]["generator"]["engines"], stall["waiting"]["generator"]["version"]) == (1, 0)
    assert "waiting for 12 rollouts: t0.0 (task mock-train-0000) at agent" in stall["message"]
    assert f"stalled: {stall['message']}" in out.splitlines()


def test_the_run_knows_as_much_time_as_its_parent(tmp_path):
    """To 50 ms or 0.1 %, on a processor of its own: what a process waits for one before its first and after its last
    instruction is known to nobody but the scheduler."""
    apart = []
    for number in range(5):
        child = Child(tmp_path, MOCK, "mock", runs=tmp_path / f"runs-{number}")
        code, out, err = child.end()
        assert code == 0, err
        summary = last_object(out)
        wall_s = summary["wall_s"]
        assert sum(summary["ledger"].values()) == pytest.approx(wall_s)
        assert "ledger" not in [event.data["name"] for event in read_events(child.folder) if event.kind == Kind.ALARM]
        waiting = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        apart.append(abs(child.wall_s - wall_s) - max(0.05, 0.001 * child.wall_s) * waiting)
        if apart[-1] <= 0:
            return
    raise AssertionError(f"beyond 50 ms or 0.1 % each time, by {apart} s")
