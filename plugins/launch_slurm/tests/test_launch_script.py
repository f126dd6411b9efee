"""The batch script: what it asks for, that it is sound, and what it does under Slurm's commands that are fakes."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from grpo_bench_launch_slurm.form import Evaluation, Job, Order, Purpose, jobs, selection
from grpo_bench_launch_slurm.script import directives, render
from hypothesis import given, settings, strategies as st

from grpo_bench.registry.site_tables import Launch

from .conftest import CLUSTER
from .faking import NODE, Batch, Fakes

GOLDEN = Path(__file__).with_name("golden")
FOLDER = Path("/cluster/runs/launch/replica-0")
LINE = "# ---"
PYXIS = Launch(
    container="registry.example#grpo-bench:1", container_digest=f"sha256:{'0' * 64}", runtime="pyxis",
    mounts=("/models:/models", "/data:/data:ro"), environment={"NCCL_DEBUG": "WARN"}, partition="batch",
    account="mlperf", qos="long", gres="gpu:gb300", arguments=("--reservation=grpo bench",),
    comment='{"OccupiedIdleGPUsJobReaper": {"exemptIdleTimeMins": "240"}}')
APPTAINER = Launch(container="/images/grpo-bench.sif", runtime="apptainer", setup=("module load apptainer",),
                   mounts=("/cluster:/cluster",), minutes=30, stop_s=100)
BARE = Launch(setup=("module load grpo-bench", 'export SITE_NAME="a b"'), minutes=60, object_store_gib=0.5)
CASES = {
    "gb300-pyxis": (("gb300-256",), PYXIS, Evaluation.DEPENDENT),
    "cluster-apptainer": (("mock", *CLUSTER), APPTAINER, Evaluation.SAME),
    "mock-bare": (("mock",), BARE, Evaluation.SAME),
}


def made(plan, launch: Launch, evaluation: Evaluation, folder: Path = FOLDER) -> tuple[Job, ...]:
    chosen = selection(plan.name, None, ["grpo.max_steps=5"], Path("/cluster/site.toml"), None)
    order = Order(chosen, (Path("/cluster/site.toml"),), evaluation, None, "/opt/grpo-bench/bin")
    return jobs(plan, launch, order, folder, 0, 4294967295)


@pytest.fixture
def scripts(plans):
    return {f"{name}.{job.purpose}": render(job, launch, segments=True)
            for name, (chosen, launch, evaluation) in CASES.items()
            for job in made(plans(*chosen), launch, evaluation)}


def test_what_is_asked_for_and_decided_is_what_the_golden_files_say(scripts) -> None:
    heads = {name: text.partition(LINE)[0] for name, text in scripts.items()}
    assert heads.keys() == {file.stem for file in GOLDEN.glob("*.sh")}
    for name, head in heads.items():
        assert head == (GOLDEN / f"{name}.sh").read_text(), name


def test_every_script_is_sound(scripts, tmp_path: Path) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    for name, text in scripts.items():
        file = tmp_path / f"{name}.sh"
        file.write_text(text)
        done = subprocess.run([checker, "--shell=bash", file], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def test_segments_are_left_out_where_slurm_knows_none(plans) -> None:
    job, _ = made(plans("gb300-256"), PYXIS, Evaluation.DEPENDENT)
    assert "--segment=8" in list(directives(job, PYXIS, segments=True))
    assert not [line for line in directives(job, PYXIS, segments=False) if "segment" in line]


@settings(max_examples=25)
@given(words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_words_reach_commands_as_they_are(plans, words: list[str]) -> None:
    job = replace(made(plans("mock"), BARE, Evaluation.SAME)[0], first_command=tuple(words),
                  environment={f"NAME{number}": word for number, word in enumerate(words)})
    head = render(job, BARE, segments=True).partition(LINE)[0]
    shown = 'printf "%s\\0" "${first_command[@]}" "${environment[@]}"'
    done = subprocess.run(["bash", "-c", f"{head}\n{shown}"], capture_output=True, check=True)
    expected = [*words, *(f"NAME{number}={word}" for number, word in enumerate(words))]
    assert done.stdout.decode() == "".join(f"{word}\0" for word in expected or [""])


Start = Callable[..., Batch]


@pytest.fixture
def script(plans, tmp_path: Path):
    """``script(key=value, ...)`` writes that of a training on three hosts, with other values in its job."""

    def write(launch: Launch = BARE, **changed) -> Path:
        folder = tmp_path / "replica-0"
        folder.mkdir(exist_ok=True)
        setup = ('export SITE_NAME="a b"',)
        launch = launch.model_copy(update={"setup": setup, "environment": {"SITE_MORE": "c d"}})
        job = replace(made(plans("mock", *CLUSTER), launch, Evaluation.SAME, folder)[0], path="", start_s=30,
                      environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "SITE_MORE": "c d"}, **changed)
        job.script.write_text(render(job, launch, segments=False))
        return job.script

    return write


def run_folder(script: Path, *events: dict) -> Path:
    """What an earlier start of the job left."""
    run = script.parent / "20260101-000000-mock-7"
    run.mkdir()
    (run / "profile.json").write_text("{}")
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def test_ray_starts_on_every_host_then_the_driver_and_all_ends_with_it(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "exit 0\n"
    ended = batch(script(), number=11).ended()
    assert ended.code == 0, ended.said
    folder = script().parent
    assert json.loads((folder / "topology-11.json").read_text()) == {"rack0": ["a1", "a2"], "rack1": ["b1"]}
    head, *others = fakes.calls("ray")
    assert {"--head", "--port=20011", "--node-ip-address=127.0.0.1", "--temp-dir=/tmp/ray.11.head0", "--num-gpus=0",
            "--num-cpus=8", "--object-store-memory=536870912",
            "--labels=grpo-bench-node=a1,grpo-bench-domain=rack0"} <= set(head)
    assert sorted(word for words in others for word in words if "--labels" in word) == [
        "--labels=grpo-bench-node=a2,grpo-bench-domain=rack0", "--labels=grpo-bench-node=b1,grpo-bench-domain=rack1"]
    assert all("--address=127.0.0.1:20011" in words for words in others)
    (driver,) = fakes.calls("grpo-bench")
    assert driver[:3] == ["run", "--profile", "mock"] and driver[-4:] == ["--seed", "4294967295", "--runs", str(folder)]
    environment = dict(line.split("=", 1) for line in fakes["env"].splitlines())
    assert environment.items() >= {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1", "SITE_NAME": "a b", "SITE_MORE": "c d", "RAY_ADDRESS": "127.0.0.1:20011",
        "RAY_AUTH_MODE": "token", "RAY_memory_monitor_refresh_ms": "0",
        "GRPO_BENCH_TOPOLOGY": str(folder / "topology-11.json")}.items()
    assert "GRPO_BENCH_SITE" not in environment  # of the shell that submitted
    assert len(fakes["token"]) == 64 and fakes["mode"].strip() == "600"
    assert not list(folder.glob(".*"))
    assert fakes["calls"].count("ray ended") == 3
    assert [line.split()[1:] for line in (folder / "attempts.log").read_text().splitlines()] == [
        ["11", "0", "started"], ["11", "0", "ended", "0"]]


def test_the_drivers_exit_code_is_the_jobs(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = "exit 3\n"
    assert batch(script(), number=12).ended().code == 3
    assert fakes["calls"].count("ray ended") == 3
    assert ["requeue", "12"] not in fakes.calls("scontrol")


def test_a_first_node_that_ends_is_told_with_its_last_lines(fakes: Fakes, batch: Start, script) -> None:
    fakes["node"] = "echo 'the port is taken'; exit 4\n"
    ended = batch(script(), number=13).ended()
    assert ended.code == 1
    assert "Ray's first node ended before it could be reached" in ended.said and "the port is taken" in ended.said
    assert not fakes.calls("grpo-bench")


def test_a_node_that_ends_before_it_is_up_is_started_again(fakes: Fakes, batch: Start, script) -> None:
    fakes["node"] = 'if [[ $SLURMD_NODENAME == a2 ]] && mkdir $FAKES/busy; then exit 1; fi 2>/dev/null\n' + NODE
    fakes["driver"] += "until [[ $(grep -c ^ray.start $FAKES/calls) == 4 ]]; do sleep 0.1; done\nexit 0\n"
    file = script()
    assert batch(file, number=29).ended().code == 0
    assert "Ray on a2 ended with 1 before it was up, at start 1 of 5" in (file.parent / "ray-29.log").read_text()
    assert fakes["calls"].count("ray ended") == 3


def test_a_first_node_that_never_answers_is_given_up(fakes: Fakes, batch: Start, script) -> None:
    fakes["node"] = "sleep 600 & wait $!\n"
    file = script()
    file.write_text(file.read_text().replace("start_s=30", "start_s=1"))
    ended = batch(file, number=14).ended()
    assert ended.code == 1 and "could not be reached in 1 s" in ended.said
    assert not fakes.calls("grpo-bench")


def test_before_the_wall_time_the_driver_is_told_and_the_job_goes_on_later(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "trap 'exit 130' USR1\ntouch $FAKES/driving\nsleep 600 & wait $!\n"
    file = script()
    job = batch(file, number=15)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGUSR1)
    assert job.ended().code == 0
    assert fakes.calls("scontrol")[-1] == ["requeue", "15"]
    assert (file.parent / "attempts.log").read_text().endswith("15 0 requeued\n")
    fakes["driver"] = "exit 0\n"
    assert batch(file, number=15, restarts=1).ended().code == 0
    assert fakes.calls("grpo-bench")[-1] == ["resume", str(file.parent / "20260101-000000-mock-7")]
    assert (file.parent / "attempts.log").read_text().endswith("15 1 ended 0\n")


def test_what_saves_nothing_is_interrupted_and_not_requeued(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "trap 'exit 130' TERM\ntouch $FAKES/driving\nsleep 600 & wait $!\n"
    job = batch(script(requeue=False, stop_signal="TERM"), number=16)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGUSR1)
    assert job.ended().code == 130
    assert ["requeue", "16"] not in fakes.calls("scontrol")


def test_a_job_that_cannot_be_requeued_says_how_to_go_on(fakes: Fakes, batch: Start, script) -> None:
    fakes["no_requeue"] = ""
    fakes["driver"] += "trap 'exit 130' USR1\ntouch $FAKES/driving\nsleep 600 & wait $!\n"
    file = script()
    job = batch(file, number=17)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGUSR1)
    ended = job.ended()
    assert ended.code == 130 and f"sbatch {file} goes on with it" in ended.said


def test_a_job_that_is_told_to_end_is_cancelled_when_its_driver_has(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "trap 'echo driver ended >> $FAKES/calls; exit 130' TERM\ntouch $FAKES/driving\n" \
                       "sleep 600 & wait $!\n"
    job = batch(script(), number=26)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGUSR2)
    assert job.ended().code == 143
    told = [line for line in fakes["calls"].splitlines() if line.endswith(" ended")]
    assert told == ["driver ended", *["ray ended"] * 3]
    assert fakes.calls("scancel")[-1] == ["26"]


def test_a_job_that_is_cancelled_while_it_leaves_does_not_come_back(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "trap 'exit 130' USR1\ntouch $FAKES/driving\nsleep 600 & wait $!\n"
    fakes["node"] = NODE.replace("; exit 1'", "; until [[ -e $FAKES/go ]]; do sleep 0.1; done; exit 1'")
    job = batch(script(), number=30)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGUSR1)
    job.until(lambda: "ray ended" in fakes["calls"])
    job.send(signal.SIGUSR2)
    fakes["go"] = ""
    assert job.ended().code == 130
    assert ["requeue", "30"] not in fakes.calls("scontrol") and fakes.calls("scancel")[-1] == ["30"]


def test_a_job_that_slurm_ends_leaves_nothing(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "trap 'touch $FAKES/told; exit 130' TERM\ntouch $FAKES/driving\nsleep 600 & wait $!\n"
    job = batch(script(), number=18)
    job.until((fakes.folder / "driving").exists)
    job.send(signal.SIGTERM)
    assert job.ended().code == 143
    assert (fakes.folder / "told").exists() and fakes["calls"].count("ray ended") == 3
    assert ["requeue", "18"] not in fakes.calls("scontrol")


def test_a_training_that_is_over_is_evaluated_or_left(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = "exit 0\n"
    file = script()
    run = run_folder(file, {"kind": "run_started", "data": {}}, {"kind": "run_ended", "data": {"status": "trained"}})
    assert batch(file, number=19).ended().code == 0
    assert fakes.calls("grpo-bench") == [["eval", str(run)]]
    left = batch(script(resume_options=("--no-eval",)), number=20).ended()
    assert left.code == 0 and "the training" in left.said and len(fakes.calls("grpo-bench")) == 1


def test_an_evaluation_needs_a_run(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = "exit 0\n"
    file = script(purpose=Purpose.EVALUATE)
    ended = batch(file, number=21).ended()
    assert ended.code == 1 and "holds no run to evaluate" in ended.said
    run = run_folder(file)
    assert batch(file, number=22).ended().code == 0
    assert fakes.calls("grpo-bench") == [["eval", str(run)]]


def test_a_driver_whose_ray_has_ended_gets_time_to_say_so(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] += "kill $(cat $FAKES/step.2)\n" \
                       "until grep -q 'have ended' $FAKES/../replica-0/slurm-27.out; do sleep 0.1; done\nexit 6\n"
    ended = batch(script(), number=27).ended()
    assert ended.code == 6 and "Ray's nodes have ended, so the driver gets 60 s" in ended.said


def test_a_line_of_the_sites_setup_that_fails_is_named(fakes: Fakes, batch: Start, script) -> None:
    file = script()
    file.write_text(file.read_text().replace("    export SITE", "    module-of-nobody load x\n    export SITE"))
    ended = batch(file, number=28).ended()
    assert ended.code == 127 and "exit code 127 of: module-of-nobody load x" in ended.said
    assert len(fakes.calls("srun")) == 0


def test_one_host_without_ray_is_only_the_driver(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = "exit 0\n"
    assert batch(script(ray=False, nodes=1), number=23).ended().code == 0
    assert not fakes.calls("ray") and len(fakes.calls("srun")) == 1
    assert "RAY_" not in fakes["env"]


def test_hosts_without_a_topology_are_domains_of_their_own(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = "exit 0\n"
    fakes["network"] = "a1 a1\na2 weird switch/7.a2\n"
    file = script()
    assert batch(file, number=24).ended().code == 0
    topology = json.loads((file.parent / "topology-24.json").read_text())
    assert topology == {"a1": ["a1"], "b1": ["b1"], "weird-switch-7": ["a2"]}


def test_a_containers_command_stands_before_every_step_in_it(fakes: Fakes, batch: Start, script) -> None:
    fakes["driver"] = 'echo "${PYTHONPATH-none}" > "$FAKES/path"\nexit 0\n'
    fakes["apptainer"] = "#!/bin/bash\nwhile [[ $1 != image.sif ]]; do shift; done\nshift\n\"$@\"\n"
    (fakes.folder / "apptainer").chmod(0o755)
    file = script(within=("apptainer", "exec", "image.sif"), container=("--container-image=x",))
    file.write_text(file.read_text().replace("    export SITE", "    export PYTHONPATH=/of/the/host\n    export SITE"))
    assert batch(file, number=25).ended().code == 0
    assert fakes["path"] == "none\n"
    steps = [shlex.join(words) for words in fakes.calls("srun")]
    assert sum("--container-image=x apptainer exec image.sif env CUDA" in step for step in steps) == 3
    assert len(steps) == 4  # the one that asks hosts for their place runs outside
