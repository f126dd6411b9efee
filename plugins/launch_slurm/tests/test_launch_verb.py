"""``grpo-bench launch``: what it submits, writes, refuses and says, with Slurm's commands as fakes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from grpo_bench_launch_slurm import records, slurm, watching_cli
from grpo_bench_launch_slurm.container import check, inside, overlays

from grpo_bench.cli import main
from grpo_bench.contract import InputError
from grpo_bench.registry.site_tables import Launch

from .conftest import CLUSTER
from .faking import Fakes

SITE = '[launch]\npartition = "batch"\nminutes = 60\n'


class Verb:
    """The verb in a folder with a site file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.site, self._capsys = folder, folder / "site.toml", capsys
        self.site.write_text(SITE)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        try:
            code = main(["launch", *words])
        except SystemExit as stopped:
            code = int(str(stopped.code))
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def launch(self, *words: str, profile: str = "mock") -> tuple[int, str, str]:
        return self("--profile", profile, "--site", str(self.site), *words)

    @property
    def launched(self) -> Path:
        (folder,) = (self.folder / "runs").iterdir()
        return folder


@pytest.fixture
def verb(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Verb(tmp_path, capsys)


def test_each_replica_is_a_job_with_a_folder_and_a_seed_of_its_own(verb: Verb, fakes: Fakes) -> None:
    code, out, err = verb.launch("--replicas", "3", "--seed-base", "5", "--set", "grpo.max_steps=10")
    assert code == 0, err
    folders = [verb.launched / f"replica-{number}" for number in range(3)]
    assert fakes.calls("sbatch") == [["--version"], *(["--parsable", str(folder / "train.sh")] for folder in folders)]
    for number, folder in enumerate(folders):
        assert f"replica {number}: seed {5 + number}, train {101 + number}: {folder}\n" in out
        script = (folder / "train.sh").read_text()
        assert f"--seed\n    {5 + number}\n    --runs\n    {folder}\n" in script and "grpo.max_steps=10" in script
        assert os.access(folder / "train.sh", os.X_OK)
        kept = json.loads((folder / "launch.json").read_text())
        assert (kept["replica"], kept["seed"], kept["jobs"]) == (number, 5 + number, {"train": str(101 + number)})
        assert kept["calls"] == [["sbatch", "--parsable", str(folder / "train.sh")]]
        assert kept["overrides"] == ["grpo.max_steps=10"] and kept["settings"]["grpo"]["max_steps"] == 10
        assert kept["files_sha256"] == {str(verb.site): hashlib.sha256(SITE.encode()).hexdigest()}
    assert json.loads((verb.launched / "launch.json").read_text())["replicas"] == 3


def test_seeds_that_nobody_gives_are_drawn(verb: Verb) -> None:
    assert verb.launch("--replicas", "3")[0] == 0
    seeds = {json.loads(file.read_text())["seed"] for file in verb.launched.glob("replica-*/launch.json")}
    assert len(seeds) == 3 and all(0 <= seed < 2**32 for seed in seeds) and seeds != {0, 1, 2}


@pytest.mark.parametrize(("words", "message"), [
    (("--seed-base", "4294967295", "--replicas", "2"), "the seed of replica 1 would be above 4294967295"),
    (("--seed-base", "-1"), "should be an integer between 0 and"), (("--replicas", "0"), "from 1 to 1000"),
    (("--minutes", "0"), "from 1 to 43200"), (("--eval", "later"), "invalid choice"),
    (("--eval", "none"), "validates while it trains, so nothing is left to evaluate"),
    (("--runs", "a%b"), "means something to Slurm"),
    (("--set", "generator.env=./site.toml"), "relative to this folder"),
    (("--set", "grpo.max_stepz=3"), "unknown key"),
    (("--set", "hardware.use=cluster", "--set", "hardware.nodes=2", "--set", "hardware.gpus_per_node=0"),
     "starts workers on one host only"),
])
def test_what_cannot_be_is_refused_before_anything_is_written(verb: Verb, fakes: Fakes, words, message: str) -> None:
    code, _, err = verb.launch(*words)
    assert code == 2 and message in err
    assert not (verb.folder / "runs").exists() and ["--parsable"] not in [call[:1] for call in fakes.calls("sbatch")]


@pytest.mark.parametrize(("text", "message"), [
    ('partitoin = "x"\n', "unknown key; did you mean 'partition'?"),
    ('environment = { RAY_ADDRESS = "x", SLURM_JOB_ID = "1" }\n', "RAY_ADDRESS, SLURM_JOB_ID cannot be set there"),
    ('container = "image"\n', "nothing is said to start it"), ('runtime = "pyxis"\n', "launch.container names none"),
    ('mounts = ["/a"]\n', "string should match pattern"), ("minutes = 0\n", "greater than or equal to 1"),
    ('arguments = ["x"]\n', "string should match pattern"),
    ('arguments = ["--nodes=3", "--reservation=x"]\n', "launch.arguments: --nodes=3: what a job takes"),
    ('arguments = ["-N3", "--sig=B:TERM@9", "--requeue", "--container-mounts=/x:/opt"]\n', "-N3, --sig=B:TERM@9, "),
    ('comment = "a\\nb"\n', "string should match pattern"),
])
def test_a_site_file_that_cannot_be_is_refused(verb: Verb, text: str, message: str) -> None:
    verb.site.write_text(f"[launch]\n{text}")
    code, _, err = verb.launch("--dry-run")
    assert code == 2 and message in err


def test_a_variable_that_the_hardware_needs_otherwise_is_refused(verb: Verb) -> None:
    verb.site.write_text('[launch.environment]\nMKL_CBWR = "SSE2"\n')
    words = [word for key in CLUSTER for word in ("--set", key)]
    code, _, err = verb.launch("--dry-run", *words)
    assert code == 2 and "MKL_CBWR = 'SSE2', and the hardware needs" in err


def test_a_dry_run_shows_all_and_does_nothing(verb: Verb, fakes: Fakes) -> None:
    before = sorted(verb.folder.rglob("*"))
    code, out, _ = verb.launch("--dry-run", "--replicas", "2", "--seed-base", "5")
    assert code == 0 and fakes.calls("sbatch") == [["--version"]]
    assert out.count("\n#!/bin/bash\n#SBATCH --job-name=mock.") == 2 and "#SBATCH --partition=batch\n" in out
    assert out.count("sbatch --parsable ") == 2
    assert [path for path in sorted(verb.folder.rglob("*")) if "fakes" not in path.parts] == [
        path for path in before if "fakes" not in path.parts]


def test_without_slurm_only_a_dry_run_works(verb: Verb, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(verb.folder))
    code, _, err = verb.launch()
    assert code == 2 and "sbatch is not on PATH" in err and not (verb.folder / "runs").exists()
    code, out, err = verb.launch("--dry-run")
    assert code == 0 and "#!/bin/bash" in out and "its version is not known here" in err
    assert verb("cancel", str(verb.folder))[0] == 2


def test_a_deferred_evaluation_waits_in_a_job_of_its_own(verb: Verb, fakes: Fakes) -> None:
    assert verb.launch("--minutes", "90", profile="gb300-256-mock")[0] == 0
    folder = verb.launched / "replica-0"
    assert fakes.calls("sbatch")[1:] == [
        ["--parsable", str(folder / "train.sh")],
        ["--parsable", "--dependency=afterok:101", "--kill-on-invalid-dep=yes", str(folder / "evaluate.sh")]]
    train, evaluate = (folder / "train.sh").read_text(), (folder / "evaluate.sh").read_text()
    assert "    --no-eval\n" in train and "#SBATCH --no-requeue\n" in train and "purpose=train\n" in train
    assert "#SBATCH --requeue\n" in evaluate and "purpose=evaluate\n" in evaluate
    assert "#SBATCH --time=90\n" in train and "stop_signal=TERM\n" in train
    kept = json.loads((folder / "launch.json").read_text())
    assert (kept["jobs"], kept["eval"]) == ({"train": "101", "evaluate": "102"}, "dependent")


@pytest.mark.parametrize(("where", "options"), [("same", 0), ("none", 1)])
def test_it_takes_place_in_the_same_job_or_not_at_all(verb: Verb, where: str, options: int) -> None:
    code, out, _ = verb.launch("--eval", where, profile="gb300-256-mock")
    assert code == 0 and not (verb.launched / "replica-0/evaluate.sh").exists()
    assert (verb.launched / "replica-0/train.sh").read_text().count("    --no-eval\n") == options
    assert ("grpo-bench eval RUN" in out) == bool(options)


def test_where_a_submission_fails_those_before_it_are_cancelled(verb: Verb, fakes: Fakes) -> None:
    fakes["refuse"] = "3"
    code, _, err = verb.launch("--replicas", "4")
    assert code == 1 and "replica 2 could not be submitted (train.sh)" in err and "invalid partition" in err
    assert "jobs 101, 102 of replicas 0 to 1 were submitted before and have been cancelled" in err
    assert fakes.calls("scancel") == [["101", "102"]] and len(fakes.calls("sbatch")) == 4


def test_where_they_cannot_be_cancelled_it_says_how(verb: Verb, fakes: Fakes) -> None:
    fakes["refuse"], fakes["stuck"] = "2", ""
    code, _, err = verb.launch(profile="gb300-256-mock")
    assert code == 1 and "replica 0 could not be submitted (evaluate.sh)" in err
    assert "jobs 101 of replicas 0 to 0 were submitted before and are still there" in err and "scancel 101" in err


def test_where_a_submission_cannot_be_kept_it_is_cancelled(verb: Verb, fakes: Fakes,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    write = records.write

    def full(folder: Path, data: dict) -> None:
        if data.get("jobs"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, data)

    monkeypatch.setattr(records, "write", full)
    code, _, err = verb.launch("--replicas", "2")
    assert code == 2 and "cannot write the launch: No space left on device" in err
    assert "jobs 101 of replicas 0 to 0 were submitted before and have been cancelled" in err
    assert fakes.calls("scancel") == [["101"]] and len(fakes.calls("sbatch")) == 2


def test_where_nothing_was_submitted_nothing_is_left(verb: Verb, fakes: Fakes) -> None:
    fakes["refuse"] = "1"
    code, _, err = verb.launch("--replicas", "2")
    assert code == 1 and "nothing was submitted" in err
    assert not list((verb.folder / "runs").iterdir()) and not fakes.calls("scancel")


def test_what_a_site_file_leaves_open_is_shown_and_not_submitted(verb: Verb, fakes: Fakes) -> None:
    registry = verb.folder / "registry.toml"
    registry.write_text('[profiles.here]\nextends = "mock"\n'
                        'observers = [{ use = "mllog", org = "site:system.submitter" }]\n')
    code, _, err = verb.launch("--dry-run", profile="here")
    assert code == 0 and "site: system.submitter (observers[0].org): set it in" in err
    code, _, err = verb.launch(profile="here")
    assert code == 2 and "leaves open what profile 'here' needs" in err and not (verb.folder / "runs").exists()
    verb.site.write_text(SITE + '[system]\nsubmitter = "me"\n')
    assert verb.launch(profile="here")[0] == 0
    assert f"--registry\n    {registry}\n" in (verb.launched / "replica-0/train.sh").read_text()


def test_a_users_own_registry_does_not_reach_a_container(verb: Verb) -> None:
    own = verb.folder / "config/grpo-bench/registry.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[profiles.mine]\nextends = "mock"\n[profiles.mine.grpo]\nmax_steps = 5\n')
    assert verb.launch("--dry-run", profile="mine")[0] == 0
    verb.site.write_text('[launch]\ncontainer = "image"\nruntime = "pyxis"\n')
    code, _, err = verb.launch("--dry-run", profile="mine")
    assert code == 2 and "grpo.max_steps" in err and "which no container has" in err


def test_an_older_slurm_is_asked_for_no_segments(verb: Verb, fakes: Fakes) -> None:
    words = ("--dry-run", "--division", "open", "--minutes", "900")
    code, new, err = verb.launch(*words, profile="gb300-256")
    assert code == 0, err
    fakes["version"] = "22.05.8"
    _, old, err = verb.launch(*words, profile="gb300-256")
    assert "#SBATCH --segment=8\n" in new and "--segment" not in old
    assert "Slurm 22.05 knows no --segment, so it is left out" in err


def test_nothing_of_the_shell_changes_what_a_script_asks_for(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SBATCH_PARTITION", "SLURM_NTASKS", "SLURM_CONF", "SITE_OWN")
    for name in names:
        monkeypatch.setenv(name, "x")
    seen = slurm.command(["env"]).splitlines()
    assert [name for name in names if f"{name}=x" in seen] == ["SLURM_CONF", "SITE_OWN"]


CLOSED = Launch(container="image", runtime="pyxis")


@pytest.mark.parametrize(("launch", "over"), [
    (CLOSED, []),
    (CLOSED.model_copy(update={"mounts": ("/data:/data", "/opt/grpo-bench:/else", "/x:/opt/grpo")}), []),
    (CLOSED.model_copy(update={"mounts": ("/mine:/opt/grpo-bench/lib/python3.12",)}), ["covers /opt/grpo-bench"]),
    (CLOSED.model_copy(update={"mounts": ("/mine:/opt",)}), ["/mine:/opt covers /opt/grpo-bench"]),
    (CLOSED.model_copy(update={"mounts": ("/mine:/",)}),
     ["covers /opt/grpo-bench and /etc/grpo-bench-provenance.json"]),
    (CLOSED.model_copy(update={"mounts": ("/mine://opt/x/../grpo-bench",)}), ["covers /opt/grpo-bench"]),
    *((CLOSED.model_copy(update={"environment": {name: "/mine"}}), [f"{name} = /mine"])
      for name in ("PYTHONPATH", "PATH", "GRPO_BENCH_ENVS")),
])
def test_nothing_lies_over_the_software_of_an_image(launch: Launch, over: list[str]) -> None:
    found = list(overlays({"sources": {"/src": {"commit": "a", "dirty": False}}}, launch))
    assert len(found) == len(over) and all(part in line for part, line in zip(over, found, strict=True))
    assert len(list(overlays({"sources": {"/src": {"commit": "a", "dirty": True}}}, launch))) == len(over) + 1


def test_only_a_run_of_the_closed_division_minds(plans) -> None:
    launch = CLOSED.model_copy(update={"mounts": ("/mine:/opt",)})
    with pytest.raises(InputError, match=r"covers /opt/grpo-bench"):
        check(plans("gb300-256"), launch)
    check(plans("gb300-256", 'ruleset.division="open"'), launch)
    check(plans("mock"), launch)
    check(plans("gb300-256-mock"), launch)


def test_a_path_is_in_a_container_where_a_mount_leaves_it_in_place() -> None:
    assert inside(Path("/data/x/y"), ["/a:/b", "/data:/data:ro"])
    assert not inside(Path("/data/x"), ["/data:/other"])
    assert not inside(Path("/database"), ["/data:/data"])


def test_what_an_image_has_to_bring_is_said(verb: Verb) -> None:
    verb.site.write_text('[artifacts]\ntrain_data = "/data/t"\nsif_dir = "/sif"\n[launch]\ncontainer = "image"\n'
                         'runtime = "apptainer"\nmounts = ["/data:/data"]\n')
    _, _, err = verb.launch("--dry-run")
    assert "artifacts.sif_dir = /sif is below none of launch.mounts" in err and "train_data" not in err
    assert "container_digest is not set" in err


def test_status_says_what_cluster_and_run_say(verb: Verb, fakes: Fakes) -> None:
    fakes["accounts"] = "102|CANCELLED by 0|00:01:00|0:15\n"
    verb.launch("--replicas", "3", "--seed-base", "5")
    fakes["queue"] = "101|RUNNING|1:23|None\n103|PENDING|0:00|Priority\n"
    folder = verb.launched / "replica-1"
    moments = ("2026-01-01T00:00:00+0000 102 0 started\n", "2026-01-01T00:01:00+0000 102 0 ended 3\n")
    (folder / "attempts.log").write_text("".join(moments))
    (folder / "slurm-102.out").write_text("first\nthe last line\n")
    code, out, _ = verb("status")
    assert code == 0
    rows = [line.split("  ") for line in out.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows[:4]] == [
        ["replica", "seed", "job", "state", "time", "run"],
        ["0", "5", "train 101", "RUNNING", "1:23", "not begun"],
        ["1", "6", "train 102", "CANCELLED (exit code 0)", "00:01:00", "not begun"],
        ["2", "7", "train 103", "PENDING (Priority)", "0:00", "not begun"]]
    assert "  the last line" in out and "  first" not in out
    (fakes.folder / "sacct").unlink()
    fakes["queue"] = ""
    _, out, _ = verb("status", "--replica", "1")
    assert "gone; it noted: ended 3" in out and "  first" in out
    assert "gone before it started" in verb("status", "--replica", "2")[1]
    assert verb("status", "--replica", "3")[0] == 2


def test_status_reads_the_runs_own_record(verb: Verb, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    verb.launch()
    small = ["--set", "grpo.max_steps=1", "--set", "validation.period=1", "--set", "validation.max_tasks=1"]
    main(["run", "--profile", "mock", *small, "--runs", str(verb.launched / "replica-0")])
    capsys.readouterr()
    fakes["queue"] = "101|COMPLETED|0:10|None\n"
    assert "target_met, step 1, 1.000" in verb("status")[1]
    journal = next(verb.launched.glob("replica-0/*/events.jsonl"))
    journal.write_text("".join(line + "\n" for line in journal.read_text().splitlines()[:-1]))
    assert "under way or cut off, step 1" in verb("status")[1]


def test_cancel_ends_what_still_waits_or_runs(verb: Verb, fakes: Fakes) -> None:
    verb.launch("--replicas", "3")
    fakes["queue"] = "101|RUNNING|1:23|None\n102|COMPLETED|0:10|None\n103|PENDING|0:00|Priority\n"
    fakes["after"] = "101|CANCELLED|1:24|None\n"
    assert verb("cancel", str(verb.launched))[:2] == (0, "cancelled: 101, 103\n")
    assert fakes.calls("scancel") == [["103"], ["--batch", "--signal=USR2", "101"]]
    assert verb("cancel")[1] == "none of its jobs is waiting or running\n"


def test_a_job_that_ends_before_it_is_told_keeps_no_other_from_being_told(verb: Verb, fakes: Fakes) -> None:
    verb.launch("--replicas", "2")
    fakes["queue"] = "101|RUNNING|1:23|None\n102|RUNNING|1:23|None\n"
    fakes["over"], fakes["after"] = "101", "101|COMPLETED|1:24|None\n102|CANCELLED|1:24|None\n"
    assert verb("cancel", str(verb.launched))[0] == 0
    assert fakes.calls("scancel") == [["--batch", "--signal=USR2", number] for number in ("101", "102")]


def test_a_job_that_does_not_end_when_told_is_cancelled_by_force(verb: Verb, fakes: Fakes, monkeypatch) -> None:
    monkeypatch.setattr(watching_cli, "CANCEL_S", 1)
    verb.launch("--replicas", "2")
    fakes["queue"] = "101|RUNNING|1:23|None\n102|COMPLETED|0:10|None\n"
    assert "not ended in 1 s, so cancelled by force: 101\ncancelled: 101\n" in verb("cancel")[1]
    assert fakes.calls("scancel") == [["--batch", "--signal=USR2", "101"], ["101"]]
    assert "none of its jobs" in verb("cancel", "--replica", "1")[1]


def test_logs_are_the_latest_jobs(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    verb.launch("--replicas", "2")
    asked: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda file, words: asked.append([file, *words]))
    code, _, err = verb("logs")
    assert code == 2 and "no job has printed anything yet" in err
    outputs = [verb.launched / f"replica-{number}/slurm-10{number + 1}.out" for number in range(2)]
    for output in outputs:
        output.write_text("x\n")
    verb("logs", "--replica", "1", "--lines", "5", "--follow")
    assert asked[-1] == ["tail", "tail", "--lines=5", "--follow=name", "--retry", "--", str(outputs[1])]


def test_a_folder_that_is_no_launch_is_named(verb: Verb) -> None:
    assert "no launch in runs" in verb("status")[2]
    code, _, err = verb("status", str(verb.folder))
    assert code == 2 and "it has no launch.json" in err
    assert "--profile is missing" in verb()[2]


def test_the_latest_launch_is_meant_where_none_is_named(verb: Verb, fakes: Fakes) -> None:
    verb.launch()
    older = verb.launched
    shutil.copytree(older, verb.folder / "runs/later")
    os.utime(older / "launch.json", (1, 1))
    (verb.folder / "runs/later/replica-0/slurm-101.out").write_text("of the later\n")
    assert "of the later" in verb("status")[1]
