"""Whole runs of Megatron and vLLM, through the command: to their end, and after everything that may end under them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind, canonical, divided
from grpo_bench.fabric._proc import Process, family, table
from grpo_bench.observers import read_events, read_run

from .children import Child, assert_gone, last_object, words

SMALL = {"grpo.prompts_per_step": 2, "grpo.generations_per_prompt": 4, "validation.max_tasks": 4,
         "validation.period": 100, "validation.metric": "off", "validation.target": "off",
         "validation.at_start": "false"}
QWEN35 = {**SMALL, "grpo.prompts_per_step": 4, "grpo.generations_per_prompt": 8}
IN_BFLOAT16 = {"generator.dtype": "bfloat16", "generator.prefix_caching": "false", "generator.sequences": 32,
               "generator.kv_cache_gib": 0.25, "generator.batched_tokens": 16384, "generator.workers": 1}
START_S = 180.0
TRAINER_1, GENERATOR = "2.sock", "3.sock"
FORGETFUL = Path(__file__).parent / "data" / "forgetful_vllm.py"


def of(events: Iterable[Event], kind: Kind) -> list[Mapping[str, Any]]:
    return [event.data for event in events if event.kind == kind]


def within_step(child: Child) -> bool:
    """Whether the process has made a step and a checkpoint and is in its next step."""
    events = child.recorded()
    made = [event.step for event in events if event.kind == Kind.CHECKPOINT]
    return bool(made) and any(event.step == made[0] + 1 and event.data["phase"] == "rollout"
                              for event in events if event.kind == Kind.PHASE and made[0] is not None)


def sampling(child: Child) -> bool:
    """Whether the process's first rollout has ended, which leaves others under way."""
    return any(event.kind == Kind.ROLLOUT for event in child.recorded())


def engine_core(child: Child) -> Process:
    """The process that vLLM's engine runs in, under that of the generator's worker."""
    worker = child.workers()[GENERATOR]
    (core,) = [item for item in table().values() if item.parent == worker.pid and "EngineCore" in words(item.pid)[0]]
    return core


def everything(child: Child) -> tuple[list[Process], list[Path]]:
    """All processes of a run under way and its temporary folders."""
    processes, folders = family(child.process.pid, table()), child.scratch()
    assert {*child.workers()} == {"1.sock", TRAINER_1, GENERATOR, "4.sock"}
    assert engine_core(child).pid in {item.pid for item in processes}
    assert {folder.parent for folder in folders} == {Path("/dev/shm"), child.temporary}
    return processes, folders


def assert_nothing_in(temporary: Path) -> None:
    """Torch keeps an empty folder for compiled kernels between processes; it is nobody's in particular."""
    left = [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert not left


def assert_async_and_refit(events: Iterable[Event], steps: int) -> None:
    """The canonical history of ``tiny-real``: steps, refits, and how old the weights behind each token were."""
    events = canonical(events)
    assert [data["version"] for data in of(events, Kind.STEP)] == [*range(1, steps + 1)]
    refits = of(events, Kind.REFIT)
    assert {data["version"] for data in refits} == {*range(steps + 1)}
    assert {data["transport"] for data in refits} == {"safetensors"}
    assert all(data["bytes"] > 7e6 for data in refits)
    assert all(0 <= data["probe_difference"] < 1e-4 for data in refits)
    ages = {int(age) for data in of(events, Kind.BATCH) for age in data["ages"]}
    assert ages == {0, 1}
    assert all(data["n_tokens"] > 0 and not data["not_samples"] for data in of(events, Kind.BATCH))


def ages_of_tokens(folder: Path) -> Iterator[int]:
    """For each run of sampled tokens how many updates are between the weights it came from and the step it trains."""
    for file in folder.glob("trajectories/step-*.jsonl"):
        step = int(file.stem.removeprefix("step-"))
        turns = [turn for line in file.read_text().splitlines() for sequence in json.loads(line)["sequences"]
                 for turn in sequence]
        for turn in turns:
            assert sum(count for count, _ in turn["versions"]) == len(turn["sampled_ids"]) > 0
            yield from (step - 1 - version for _, version in turn["versions"])


def verdict(folder: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "grpo_bench", "check", str(folder), "--json"], check=False, text=True,
                          capture_output=True)
    assert (done.returncode, done.stderr) == (1, "")
    return json.loads(done.stdout)


@pytest.mark.real("megatron", "vllm")
def test_weights_that_megatron_saved_are_read_and_evaluated_by_vllm(tmp_path, temporary):
    """Each engine reads the folder, and says the same of the probe as when the trainer sent it these weights."""
    settings = {**SMALL, "grpo.max_steps": 2, "validation.period": 1, "validation.deferred": "true"}
    child = Child(tmp_path, settings, "tiny-real", temporary=temporary)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    training, evaluation = divided(read_run(child.folder))
    differences = {data["version"]: data["probe_difference"] for data in of(training, Kind.REFIT)}
    refits = of(evaluation, Kind.REFIT)
    assert [(data["version"], data["transport"]) for data in refits] == [(1, "hf_folder"), (2, "hf_folder")]
    assert all(data["probe_difference"] == pytest.approx(differences[data["version"]], abs=1e-5) for data in refits)
    assert [(data["version"], data["tasks"]) for data in of(evaluation, Kind.VALIDATION)] == [(1, 4), (2, 4)]
    assert not of(training, Kind.VALIDATION)


@pytest.mark.real("megatron", "vllm")
def test_megatron_and_vllm_train_a_policy_one_version_apart(tmp_path, temporary):
    child = Child(tmp_path, {**SMALL, "grpo.max_steps": 3, "validation.period": 3}, "tiny-real", temporary=temporary)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    events = list(read_events(child.folder))
    assert_async_and_refit(events, 3)
    rollouts = [event for event in events if event.kind == Kind.ROLLOUT]
    assert {event.data["reward"] for event in rollouts} == {0.0, 1.0}
    assert set(ages_of_tokens(child.folder)) == {0, 1}
    held_out = [event.data["versions"] for event in rollouts if event.data["purpose"] == "validation"]
    assert held_out == [[3]] * 16
    updates = of(events, Kind.UPDATE)
    assert any(data["grad_norm"] > 0 for data in updates)
    for name in ("report.html", "mllog.txt", "profile.json", "provenance.json", "trace.json"):
        assert (child.folder / name).stat().st_size
    said = verdict(child.folder)
    wrong = {(finding["by"], finding["rule"]) for finding in said["findings"] if not finding["ok"]}
    assert wrong <= {("run", "scored"), ("run", "end"), ("observer mllog", "official checker")}
    assert_nothing_in(temporary)


@pytest.mark.real("megatron", "vllm")
def test_a_run_goes_on_after_a_killed_rank_a_killed_engine_ctrl_c_and_a_killed_vllm(tmp_path, temporary):
    child = Child(tmp_path, {**SMALL, "grpo.max_steps": 5}, "tiny-real", temporary=temporary)
    child.until(lambda: within_step(child), START_S)
    processes, folders = everything(child)
    os.kill(child.workers()[TRAINER_1].pid, signal.SIGKILL)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (1, "failed")
    line = err.splitlines()[-1]
    for part in ("plugin megatron, role trainer", "step ", "worker process trainer-1 was ended by SIGKILL",
                 "its last output: ", f"grpo-bench resume {child.folder}"):
        assert part in line
    assert_gone(processes, folders)

    child = Child(tmp_path, {}, "", verb=("resume", str(child.folder)), temporary=temporary)
    child.until(lambda: within_step(child), START_S)
    processes, folders = everything(child)
    child.process.kill()
    child.end()
    assert_gone(processes, folders)

    child = Child(tmp_path, {}, "", verb=("resume", str(child.folder)), temporary=temporary)
    child.until(lambda: within_step(child), START_S)
    processes, folders = everything(child)
    child.process.send_signal(signal.SIGINT)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (130, "interrupted"), err
    assert_gone(processes, folders)

    child = Child(tmp_path, {}, "", verb=("resume", str(child.folder)), temporary=temporary)
    child.until(lambda: sampling(child), START_S)
    processes, folders = everything(child)
    killed = engine_core(child).pid
    os.kill(killed, signal.SIGKILL)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    (lost,) = [data for data in of(child.recorded(), Kind.ALARM) if data["name"] == "engine_lost"]
    assert lost["engine"] == 0
    assert f"vLLM's engine process {killed} was ended by SIGKILL" in lost["cause"]
    assert_gone(processes, folders)

    events = list(read_events(child.folder))
    assert [data["attempt"] for data in of(events, Kind.RESUMED)] == [2, 3, 4]
    assert_async_and_refit(events, 5)
    assert_nothing_in(temporary)


@pytest.mark.real("vllm")
def test_vllm_takes_the_place_of_the_laptops_generator(tmp_path):
    described, deterministic, events = swapped(tmp_path, {"generator.use": "vllm", "generator.workers": 1})
    assert not deterministic
    assert "equal seeds may differ: generator 'vllm' does not promise equal results for equal seeds" in described
    assert all(data["probe_difference"] < 1e-4 for data in of(events, Kind.REFIT))


@pytest.mark.real("megatron")
def test_megatron_takes_the_place_of_the_laptops_trainer(tmp_path):
    described, deterministic, events = swapped(tmp_path, {"trainer.use": "megatron", "generator.workers": 1})
    assert deterministic
    assert "seed 0, deterministic" in described
    assert any(data["grad_norm"] > 0 for data in of(events, Kind.UPDATE))


def swapped(folder: Path, settings: Mapping[str, object]) -> tuple[str, bool, list[Event]]:
    """What the plan says of ``laptop`` with these settings, whether the run is deterministic, and its events."""
    wanted = {**SMALL, **settings, "grpo.max_steps": 2}
    sets = [word for key, value in wanted.items() for word in ("--set", f"{key}={value}")]
    plan = Child(folder, {}, "", verb=("plan", "--profile", "laptop", *sets), json_output=False)
    code, described, err = plan.end()
    assert code == 0, err
    child = Child(folder, wanted, "laptop")
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    profile = json.loads((child.folder / "profile.json").read_text())
    events = list(read_events(child.folder))
    assert [data["version"] for data in of(events, Kind.REFIT)] == [0, 1, 2]
    assert {data["transport"] for data in of(events, Kind.REFIT)} == {"safetensors"}
    assert {data["reward"] for data in of(events, Kind.ROLLOUT)} == {0.0, 1.0}
    return " ".join(described.split()), profile["deterministic"], events


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A folder with a distribution whose generator ``forgetful`` skips the refit to version 2."""
    info = tmp_path / "site" / "forgetful_vllm-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful-vllm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[grpo_bench.generator]\nforgetful = forgetful_vllm:generator\n")
    (info.parent / "forgetful_vllm.py").write_text(FORGETFUL.read_text())
    return info.parent


@pytest.mark.real("megatron", "vllm")
def test_a_qwen35_in_bfloat16_is_followed_from_refit_to_refit(tmp_path):
    child = Child(tmp_path, {**QWEN35, "grpo.max_steps": 2}, "tiny-real-qwen35")
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    first, *others = of(read_events(child.folder), Kind.REFIT)
    assert first["probe_followed"] is None
    assert [data["version"] for data in others] == [1, 2]
    for data in others:
        assert data["probe_distance"] <= 1.5 * first["probe_distance"]
    assert any(data["probe_followed"] is not None and data["probe_followed"] > 0.25 for data in others)


@pytest.mark.real("megatron", "vllm")
def test_a_qwen35_whose_refit_is_skipped_ends_the_run(tmp_path, forgetful):
    settings = {**QWEN35, "grpo.max_steps": 3, "generator.use": "forgetful", **IN_BFLOAT16}
    child = Child(tmp_path, settings, "tiny-real-qwen35", site=forgetful)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (1, "failed"), err
    assert "role trainer/generator, step 2" in err
    assert any(part in err for part in ("after the refit to version 2, and by ", "did not follow the trainer"))
    assert [data["version"] for data in of(read_events(child.folder), Kind.REFIT)] == [0, 1]
