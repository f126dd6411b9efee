"""Whole runs on a Ray cluster of four nodes of which parts are killed: each goes on, or can be gone on with, in bounded
time, and nothing is left of what was killed.

The nodes are ``n0`` (the head, where the driver is) to ``n3``. Two are the trainer's and two the generator's, and each
has a rollout worker; where the trainer has processes they are on the first node of the topology.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from grpo_bench.contract import Event, Kind
from grpo_bench.fabric._proc import Process
from grpo_bench.observers import read_events

from .children import Child, assert_gone, last_object
from .conftest import run_mock
from .raylets import Raylets, placed, seats

pytestmark = pytest.mark.real("ray")

SMALL = {"grpo.max_steps": 8, "grpo.prompts_per_step": 8, "grpo.generations_per_prompt": 3,
         "validation.metric": "off", "validation.target": "off", "validation.period": 100, "checkpoint.period": 2,
         "generator.token_s": 0.01}
LAPTOP = {"trainer.workers": 2, "generator.use": "mock", "generator.token_s": 0.01, "grpo.prompts_per_step": 4,
          "grpo.generations_per_prompt": 2, "grpo.max_steps": 5, "validation.metric": "off", "validation.target": "off",
          "validation.period": 100, "validation.at_start": "false", "checkpoint.period": 1}


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    cluster = Raylets({"n0": "d0", "n1": "d0", "n2": "d1", "n3": "d1"})
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            yield cluster
    finally:
        cluster.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """``run(settings, profile)`` starts a run that ends with the test, however that ends."""
    children: list[Child] = []

    def start(settings: Mapping[str, object], profile: str) -> Child:
        children.append(Child(tmp_path, settings, profile))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.communicate()


def all_of(child: Child) -> list[Process]:
    return [process for processes in seats(child).values() for process in processes]


def alarms(events: list[Event], name: str) -> list[str]:
    return [event.data["message"] for event in events if event.kind == Kind.ALARM and event.data["name"] == name]


def until_steps(child: Child, steps: int) -> None:
    child.until(lambda: sum(event.kind == Kind.STEP for event in child.recorded()) >= steps, patience_s=240)


def finished(child: Child) -> tuple[dict[str, object], list[Event]]:
    code, out, err = child.end()
    assert code == 0, err
    return last_object(out), list(read_events(child.folder))


def test_lost_engines_and_rollout_workers_come_back_on_other_hosts_and_the_run_goes_on(
        raylets: Raylets, run: Callable[..., Child], tmp_path: Path) -> None:
    """First the process of an engine, then the node of a rollout worker, then the node of both."""
    settings = placed(tmp_path, "n0", "n1", "n2", "n3", policy_nodes=2, generation_nodes=2)
    child = run({**SMALL, **settings, "rollout.workers": 4, "limits.rollout_retries": 5}, "mock")
    until_steps(child, 1)
    before = all_of(child)
    os.kill(seats(child)["generator-0"][0].pid, signal.SIGKILL)
    until_steps(child, 3)
    raylets.kill("n1")
    until_steps(child, 5)
    raylets.kill("n3")
    try:
        summary, events = finished(child)
    finally:
        raylets.add("n1")
        raylets.add("n3")
    assert summary["status"] == "completed"
    assert [event.data["version"] for event in events if event.kind == Kind.STEP] == list(range(1, 9))
    engines, workers = alarms(events, "engine_lost"), alarms(events, "worker_lost")
    assert len(engines) == 2 and len(workers) == 2
    assert "engine 0 of the generator broke down (worker process generator-0" in engines[0] and "SIGKILL" in engines[0]
    assert "host n3 is gone" in engines[1]
    assert ["host n1 is gone" in text for text in workers] == [True, False]
    assert "host n3 is gone" in workers[1] and all("was started again in" in text for text in workers)
    lost = [event.data for event in events if event.kind == Kind.ROLLOUT and event.data["cause"] is not None]
    assert lost and all(data["reward"] is None for data in lost)
    assert not any(event.data["not_samples"] for event in events if event.kind == Kind.BATCH)
    ages = {(event.step or 0) - version for event in events if event.kind == Kind.ROLLOUT
            for version in event.data["versions"]}
    assert ages == {1}
    assert_gone([*before, *all_of(child)], [])


def test_a_run_whose_trainer_lost_a_host_goes_on_on_a_spare_one_and_beyond_its_limit_fails(
        raylets: Raylets, run: Callable[..., Child], tmp_path: Path) -> None:
    settings = placed(tmp_path, "n3", "n2", "n1", "n0", policy_nodes=1, generation_nodes=2, spare=1)
    child = run({**LAPTOP, **settings, "rollout.workers": 2, "limits.trainer_restarts": 1}, "laptop")
    until_steps(child, 1)
    raylets.kill("n3")
    try:
        child.until(lambda: any(event.kind == Kind.RESUMED for event in child.recorded()), patience_s=240)
        until_steps(child, 3)
        os.kill(seats(child)["trainer-1"][0].pid, signal.SIGKILL)
        code, out, err = child.end()
    finally:
        raylets.add("n3")
    assert (code, last_object(out)["status"]) == (1, "failed")
    assert "trainer-1" in err and "SIGKILL" in err and f"grpo-bench resume {child.folder}" in err
    events = list(read_events(child.folder))
    (alarm,) = alarms(events, "trainer_lost")
    assert "host n3 is gone" in alarm and "restart 1 of 1" in alarm
    assert any("host n3 is gone" in text for text in alarms(events, "host_replaced"))
    assert_gone(all_of(child), [])
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert (code, last_object(out)["status"], last_object(out)["attempts"]) == (0, "completed", 3), err
    steps = [event.data["version"] for event in read_events(child.folder) if event.kind == Kind.STEP]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5]


def test_of_a_driver_that_is_killed_nothing_is_left_and_the_run_ends_the_same(
        raylets: Raylets, run: Callable[..., Child], tmp_path: Path) -> None:
    settings = placed(tmp_path, "n0", "n1", "n2", "n3", policy_nodes=2, generation_nodes=2)
    child = run({**SMALL, **settings, "rollout.workers": 4}, "mock")
    until_steps(child, 3)
    processes = all_of(child)
    assert len(processes) == 6
    child.process.kill()
    child.end()
    assert_gone(processes, [])
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert (code, last_object(out)["status"], last_object(out)["attempts"]) == (0, "completed", 2), err
    alone = run_mock(tmp_path / "alone", [f"{key}={value}" for key, value in SMALL.items()])
    assert last_object(out)["weights_sha256"] == alone.outcome.summary["weights_sha256"]
    assert_gone(all_of(child), [])
