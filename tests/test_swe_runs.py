"""Whole runs of real agents on small repositories in sandboxes: what each earns, what trains, and what is left behind.

The tasks are three faults of a package of our own, laid out as `grpo-bench tasks build` does it. A script repairs each
of them once in three rollouts. Where the packaged tasks have been built, or are to be (``--build``), they are played as
well.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind, canonical
from grpo_bench.fabric._proc import Process, family, table
from grpo_bench.observers import read_events

from .children import Child, assert_gone, last_object

TOY = Path(__file__).parents[1] / "plugins" / "env_r2egym" / "tests" / "toy.py"
BUILT = Path.home() / ".cache" / "grpo-bench" / "tasks" / "swe"
START_S = 180.0
VARIANTS = 3
ODD = "# \"quoted\", 'single', <tag a=1> & </tag>, \\n\n"
"""Text that a call must carry unharmed."""


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def script_of(toy: Any, faults: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Three ways to go about each task: a repair, nothing, and an edit that mends nothing."""
    look = {"content": "Let me look.", "calls": [call("execute_bash", command="git log --oneline; cat tally.py")]}
    end = {"content": "", "calls": [call("finish", message="Done.")]}
    tasks = []
    for name, (good, bad) in faults.items():
        repair = {"content": "There it is.", "calls": [call(
            "str_replace_editor", command="str_replace", path="/testbed/tally.py", old_str=bad, new_str=good)]}
        scribble = {"calls": [call("execute_bash", command=f"cat >> tally.py <<'END'\n{ODD}END\n")]}
        ways = {"fix": [look, repair, end], "nothing": [look, end], "wrong": [scribble, end]}
        tasks.append({"when": f"The function {name} of tally gives a wrong result.", "instance_id": toy.ids[name],
                      "variants": [{"name": way, "reward": float(way == "fix"), "replies": replies}
                                   for way, replies in ways.items()]})
    return {"schema": 1, "tasks": tasks}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks with its script."""
    spec = importlib.util.spec_from_file_location("toy_tasks", TOY)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.make_toy(tmp_path_factory.mktemp("toy"))
    (made.folder / "script.json").write_text(json.dumps(script_of(made, module.FAULTS)))
    return made.folder


def settings(folder: Path, scripted: bool = True) -> dict[str, object]:
    """The profile on the tasks of a folder; of the toy's two prompts each step takes one."""
    places: dict[str, object] = {f"environment.{name}": folder / f"{name}.jsonl" for name in ("train", "validation")}
    places["environment.images"] = folder / "images"
    return {**places, "generator.script": folder / "script.json"} if scripted else places


def of(events: Sequence[Event], kind: Kind) -> list[Mapping[str, Any]]:
    return [event.data for event in events if event.kind == kind]


def assert_as_scripted(events: Sequence[Event], script: Mapping[str, Any], tasks: int) -> None:
    """Every rollout earned what its variant says, and that by normal means."""
    variants = {task["instance_id"]: task["variants"] for task in script["tasks"]}
    rollouts = of(events, Kind.ROLLOUT)
    assert len({data["rollout_id"] for data in rollouts}) == len(rollouts) == VARIANTS * tasks
    for data in rollouts:
        ways = variants[data["task_id"]]
        way = ways[int(data["rollout_id"].rpartition(".")[2]) % len(ways)]
        said = data["rollout_id"], data["task_id"], way["name"], data.get("failure")
        assert (data["end"], data["reward"]) == ("completed", way["reward"]), said
        assert data["counters"] == {"agent_finished": 1}, said
    assert len({data["task_id"] for data in rollouts}) == tasks
    assert all(not data["not_samples"] and not data["masked"] and data["n_tokens"] for data in of(events, Kind.BATCH))


def held(child: Child) -> tuple[list[Process], list[Path]]:
    """What a run under way holds: processes, temporary folders, and those of its sandboxes, cgroups among them."""
    processes = family(child.process.pid, table())
    marks = tuple(f"grpo-bench-sandbox-{item.pid}-" for item in processes)
    places = [path for parent in (Path("/tmp"), Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/memory"))
              if parent.is_dir() for path in parent.iterdir() if path.name.startswith(marks)]
    return processes, [*child.scratch(), *places]


def playing(child: Child, step: int) -> bool:
    """Whether step ``step`` has sandboxes open, and none of its rollouts is over."""
    events = child.recorded()
    begun = any(event.kind == Kind.PHASE and (event.data["phase"], event.step) == ("rollout", step) for event in events)
    return begun and any(path.is_dir() for path in held(child)[1] if path.parent == Path("/tmp"))


@pytest.fixture
def temporary(temporary: Path) -> Iterator[Path]:
    """Empty again in the end."""
    yield temporary
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


@pytest.mark.real("openhands", "bwrap")
def test_interrupted_and_resumed_every_rollout_earns_what_its_variant_says(toy: Path, tmp_path: Path, temporary: Path):
    child = Child(tmp_path, {**settings(toy), "grpo.prompts_per_step": 1}, "swe-scripted", temporary=temporary)
    child.until(lambda: playing(child, 2), START_S)
    processes, folders = held(child)
    child.process.send_signal(signal.SIGINT)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (130, "interrupted"), err
    assert_gone(processes, folders)

    child = Child(tmp_path, {}, "", verb=("resume", str(child.folder)), temporary=temporary)
    child.until(lambda: any(event.kind == Kind.ROLLOUT for event in child.recorded()), START_S)
    processes, folders = held(child)
    code, out, err = child.end()
    assert (code, last_object(out).get("status"), last_object(out).get("attempts")) == (0, "completed", 2), err
    assert_gone(processes, folders)
    events = canonical(list(read_events(child.folder)))
    assert_as_scripted(events, json.loads((toy / "script.json").read_text()), tasks=3)
    assert [data["version"] for data in of(events, Kind.STEP)] == [1, 2]


@pytest.mark.real("openhands", "bwrap")
def test_killed_a_run_leaves_no_process_in_a_sandbox(toy: Path, tmp_path: Path, temporary: Path):
    child = Child(tmp_path, {**settings(toy), "grpo.prompts_per_step": 1}, "swe-scripted", temporary=temporary)
    child.until(lambda: playing(child, 1), START_S)
    processes, _ = held(child)
    os.kill(child.process.pid, signal.SIGKILL)
    child.end()
    assert_gone(processes, [])


@pytest.mark.real("openhands", "bwrap")
def test_a_tiny_policy_gets_through_its_rollouts_and_trains(toy: Path, tmp_path: Path, temporary: Path):
    child = Child(tmp_path, {**settings(toy, scripted=False), "grpo.prompts_per_step": 1}, "swe-tiny",
                  temporary=temporary)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    events = list(read_events(child.folder))
    rollouts = of(events, Kind.ROLLOUT)
    assert len(rollouts) == 4
    for data in rollouts:
        assert data["end"] in ("completed", "max_turns", "truncated") and "failure" not in data, data
        assert data["reward"] == 0.0 and "tampering" not in data["counters"]
    (batch,), (update,) = of(events, Kind.BATCH), of(events, Kind.UPDATE)
    assert batch["n_tokens"] > 0 and not batch["not_samples"]
    assert update["grad_norm"] == 0.0  # equal rewards, so no advantages
    assert all(0 <= data["probe_difference"] < 1e-4 for data in of(events, Kind.REFIT))


@pytest.fixture
def packaged(request: pytest.FixtureRequest) -> Path:
    """The folder of the packaged tasks."""
    if request.config.getoption("--build"):
        subprocess.run([sys.executable, "-m", "grpo_bench", "tasks", "build", "--set", "swe"], check=True)
    elif not (BUILT / "script.json").is_file():
        pytest.skip("not built: grpo-bench tasks build --set swe")
    return BUILT


@pytest.mark.real("openhands", "bwrap")
def test_the_packaged_tasks_earn_what_their_variants_say(packaged: Path, tmp_path: Path, temporary: Path):
    child = Child(tmp_path, settings(packaged), "swe-scripted", temporary=temporary)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    assert_as_scripted(list(read_events(child.folder)), json.loads((packaged / "script.json").read_text()), tasks=8)
