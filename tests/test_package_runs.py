"""``package`` on runs that the engine made: the tree that the official tools take, and everything that is refused.

A mock run is never scored. So one is made, evaluated afterwards as the benchmark wants it, and its record is changed
here, for these tests only, into what three runs of real parts would have recorded.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf import submission
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.package import Candidate, refusals
from grpo_bench_rules_mlperf.package import candidate as package_candidate
from grpo_bench_rules_mlperf.package_tree import whole
from grpo_bench_rules_mlperf.reading import read
from grpo_bench_rules_mlperf.rules import Bound, Nothing
from grpo_bench_rules_mlperf.system import FIELDS, described
from grpo_bench_rules_mlperf.training_6_1 import RULES
from grpo_bench_rules_mlperf.writer import text

from grpo_bench.cli import main
from grpo_bench.contract import Event, InputError, Kind, RunFolderError, settings_of
from grpo_bench.engine.folder import software_sha256
from grpo_bench.observers import read_events, read_run

CHECKER = "4.1.68"
PROFILE = "gb300-256-mock"
TREE = Path("MOCK/benchmarks/qwen35_397b_grpo/implementations")
RESULTS = Path(f"MOCK/results/{PROFILE}/qwen35_397b_grpo")
SYSTEM = {**dict.fromkeys(FIELDS, "said"), "submitter": "MOCK", "division": "closed", "system_name": PROFILE,
          "status": "Research, Development, or Internal (RDI)", "number_of_nodes": "1", "host_processors_per_node": "2",
          "host_processor_core_count": "72", "host_processor_vcpu_count": "", "accelerators_per_node": "0"}
Change = Callable[[dict[str, Any]], object]


def checker() -> str:
    try:
        return version("mlperf-logging")
    except PackageNotFoundError:
        return ""


pytestmark = pytest.mark.skipif(checker() != CHECKER, reason=f"mlperf-logging {CHECKER} is not installed")


def nothing(data: dict[str, Any]) -> None:
    """Change nothing."""


def changed(file: Path, *changes: Change) -> None:
    """Change the first line of a journal, or all of a JSON file."""
    first, newline, rest = file.read_text().partition("\n") if file.suffix == ".jsonl" else (file.read_text(), "", "")
    value = json.loads(first)
    for change in changes:
        change(value)
    file.write_text(json.dumps(value) + newline + rest)


def scored(event: dict[str, Any]) -> None:
    """A first event as real parts, settings that keep the rules and a committed source would have it."""
    data = event["data"]
    data |= {"scored": True, "unscored": []}
    for part in data["parts"].values():
        part["stand_in"] = False
    for item in RULES.requirements:
        head, *path = item.at[0].split(".")
        if item.bound is not Bound.REFERENCE and head != "model" and not path[-1].isdecimal():
            wanted = item.wanted_at(RULES, RULES.reference_batch)
            within, *path = (data["parts"][path[0]]["facts"], *path[1:]) if head == "facts" else (
                data["settings"], head, *path)
            for key in path[:-1]:
                within = within.setdefault(key, {})
            if item.unset is Nothing.SAID:
                within[path[-1]] = wanted
    data["tasks"]["validation"] = data["tasks"].pop("heldout")


def committed(statement: dict[str, Any]) -> None:
    """A statement of provenance as a checkout without changes would have it."""
    for state in statement["sources"].values():
        state |= {"commit": state["commit"] or "ab" * 20, "dirty": False}


def run_like(mocked: Path, folder: Path, seed: int, change: Change = nothing, software: Change = nothing) -> Path:
    """A run folder with the record of ``mocked`` as that of a scored run; ``change`` gets the first event's data, and
    ``software`` the provenance."""
    for name in ("events.jsonl", "provenance.json", "eval/events.jsonl", "eval/provenance.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mocked / name, folder / name)
    own: dict[str, Any] = {"run": folder.name, "seed": seed}

    def training(event: dict[str, Any]) -> None:
        event["data"] |= own
        event["data"]["settings"]["seed"] = seed
        change(event["data"])

    def evaluation(event: dict[str, Any]) -> None:
        event["data"] |= {"run": folder.name, "training_sha256": digest}
        event["data"]["settings"]["seed"] = seed

    def kept(event: dict[str, Any]) -> None:
        file = folder / "provenance.json" if event["kind"] == Kind.RUN_STARTED else folder / "eval/provenance.json"
        event["data"]["provenance_sha256"] = software_sha256(json.loads(file.read_text()))

    changed(folder / "provenance.json", committed, software)
    changed(folder / "eval/provenance.json", committed)
    changed(folder / "events.jsonl", scored, training, kept)
    (folder / "profile.json").write_text(json.dumps(settings_of(read_events(folder))))
    digest = hashlib.sha256((folder / "events.jsonl").read_bytes()).hexdigest()
    changed(folder / "eval/events.jsonl", scored, evaluation, kept)
    (folder / "mllog.txt").write_text(text(list(read_run(folder)), MllogConfig(org="MOCK")))
    return folder


@pytest.fixture(scope="module")
def mocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mocked")
    command = [sys.executable, "-m", "grpo_bench", "run", "--profile", PROFILE, "--runs", str(folder), "--json",
               "--set", "grpo.max_steps=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / json.loads(done.stdout)["run"]


@pytest.fixture
def runs(mocked: Path, tmp_path: Path) -> list[Path]:
    return [run_like(mocked, tmp_path / f"run-{seed}", seed) for seed in (7, 8, 9)]


@pytest.fixture
def system(tmp_path: Path) -> Path:
    file = tmp_path / "system.json"
    file.write_text(json.dumps(SYSTEM))
    return file


@pytest.fixture
def package(system: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """``package(*runs)`` is the exit code, and the outcome as JSON; ``DIR`` is ``tmp_path / "out"``."""

    def act(*runs: Path, out: str = "out") -> tuple[int, dict[str, Any]]:
        code = main(["package", *map(str, runs), "--system", str(system), "--out", str(tmp_path / out), "--json"])
        return code, json.loads(capsys.readouterr().out or "{}")

    return act


@pytest.fixture(scope="module")
def submitted(mocked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path, dict[str, Any]]:
    """Three runs, the submission that was made of them, and what the command said."""
    folder = tmp_path_factory.mktemp("submitted")
    runs = [run_like(mocked, folder / f"run-{seed}", seed) for seed in (7, 8, 9)]
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    said = StringIO()
    with redirect_stdout(said):
        code = main(["package", *map(str, runs), "--system", str(folder / "system.json"), "--out", str(folder / "out"),
                     "--json"])
    assert code == 0, said.getvalue()
    return runs, folder / "out", json.loads(said.getvalue())


def test_three_scored_runs_become_a_submission(submitted) -> None:
    runs, out, outcome = submitted
    assert outcome["packaged"] is True
    assert {path.name for path in out.iterdir()} == {"MOCK", "summary.json", "summary.md"}
    assert {path.name for path in (out / RESULTS).iterdir()} == {f"result_{number}.txt" for number in range(3)}
    for number, run in enumerate(runs):
        assert (out / RESULTS / f"result_{number}.txt").read_bytes() == (run / "mllog.txt").read_bytes()
    assert json.loads((out / f"MOCK/systems/{PROFILE}.json").read_text()) == SYSTEM
    assert json.loads((out / "summary.json").read_text()) == {key: value for key, value in outcome.items()
                                                              if key not in ("packaged", "out", "code_missing")}
    assert [(row["run"], row["seed"], row["samples"]) for row in outcome["runs"]] == [
        (f"run-{seed}", seed, 4864) for seed in (7, 8, 9)]
    assert all(row["clock"]["seconds"] == pytest.approx(60 * row["minutes"], abs=0.01) for row in outcome["runs"])
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".new")]


def test_the_official_tools_take_it_and_come_to_the_same_score(submitted, tmp_path: Path) -> None:
    _, out, outcome = submitted
    shutil.copytree(out, tmp_path / "out")  # the tools write beside what they read
    command = [sys.executable, "-m", "mlperf_logging.package_checker", "out/MOCK", "training", "6.1.0", "--werror"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert "PACKAGE CHECKER FOUND NO ERRORS" in done.stderr, done.stderr
    command = [sys.executable, "-m", "mlperf_logging.result_summarizer", "out/MOCK", "training", "6.1.0", "--csv",
               "table.csv"]
    subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=300, check=True)
    with (tmp_path / "table.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["qwen35_397b_grpo"]) == pytest.approx(outcome["score_minutes"])
    assert (row["submitter"], row["system"], row["division"]) == ("MOCK", PROFILE, "closed")
    assert main(["check", str(out / "MOCK")]) == 0


def test_it_holds_how_the_runs_were_made(submitted) -> None:
    runs, out, outcome = submitted
    tree = out / TREE
    ran = json.loads((runs[0] / "provenance.json").read_text())
    facts = json.loads((tree / PROFILE / f"{PROFILE}_grpo-bench.json").read_text())
    assert [(item["result"], item["seed"]) for item in facts["runs"]] == [("result_0.txt", 7), ("result_1.txt", 8),
                                                                          ("result_2.txt", 9)]
    assert facts["source_commits"] == sorted({tree["commit"] for tree in ran["sources"].values()})
    assert json.loads((tree / PROFILE / "provenance/result_1-provenance.json").read_text()) == ran
    assert (tree / PROFILE / "provenance/result_1-eval-provenance.json").is_file()
    profile = json.loads((tree / PROFILE / "profile.json").read_text())
    assert profile["grpo"]["prompts_per_step"] == 16 and "seed" not in profile
    for script in ("setup.sh", "init_datasets.sh", "run_and_time.sh"):
        subprocess.run(["sh", "-n", tree / PROFILE / script], check=True)
        assert (tree / PROFILE / script).stat().st_mode & 0o111
    assert f"--profile {PROFILE}" in (tree / PROFILE / "run_and_time.sh").read_text()
    there = {path.name for path in (tree / "grpo-bench").iterdir()} - {"README.md"}
    assert there == ran["distributions"].keys() - set(outcome["code_missing"])


def test_the_code_that_ran_is_in_it_and_no_other(mocked: Path, package, tmp_path: Path) -> None:
    from grpo_bench.registry import distribution_lock

    name = "grpo-bench-model-qwen3"
    here = {name: distribution_lock([name])["distributions"][name],
            "grpo-bench-mock": {"version": "0.0.9", "sha256": "0" * 64}}
    again = [run_like(mocked, tmp_path / f"again-{seed}", seed, software=lambda found: found.update(distributions=here))
             for seed in (1, 2, 3)]
    _, outcome = package(*again)
    code = tmp_path / "out" / TREE / "grpo-bench"
    assert outcome["code_missing"] == ["grpo-bench-mock"]
    assert (code / name / "grpo_bench_model_qwen3/__init__.py").is_file() and not (code / "grpo-bench-mock").exists()
    assert f"| grpo-bench-mock | 0.0.9 | {'0' * 64} | no |" in (code / "README.md").read_text()


def test_a_mock_run_is_refused(mocked: Path, package, tmp_path: Path) -> None:
    copies = [shutil.copytree(mocked, tmp_path / f"copy-{number}",
                              ignore=lambda _, names: {"checkpoints", "trajectories"} & set(names))
              for number in range(3)]
    code, outcome = package(*copies)
    assert (code, outcome["packaged"]) == (1, False)
    assert any("not a result: run: scored: trainer 'mock' is a stand-in" in reason for reason in outcome["reasons"])
    assert not (tmp_path / "out").exists()


def setting(section: str, key: str, value: Any) -> Change:
    return lambda data: data["settings"][section].update({key: value})


DIFFERENCES: dict[str, tuple[Change, Change, str]] = {
    "a setting": (setting("limits", "score_s", 17.0), nothing, "other settings than run-7: limits.score_s is 17.0"),
    "the profile": (lambda data: data.update(profile="other"), nothing, "profile other, run-7 has gb300-256-mock"),
    "the batch": (setting("grpo", "prompts_per_step", 32), nothing, "grpo.prompts_per_step is 32, not 16"),
    "the division": (setting("ruleset", "division", "open"), nothing, 'ruleset.division is "open", not "closed"'),
    "the ruleset": (setting("ruleset", "use", "mock"), nothing, "made under ruleset mock, not mlperf-training-6.1"),
    "no ruleset": (lambda data: data["settings"].update(ruleset=None), nothing, "made under no ruleset"),
    "no log": (lambda data: data["settings"].update(observers=[]), nothing, "without the observer mllog"),
    "the seed": (lambda data: data.update(seed=7), nothing, "have the same seed, 7"),
    "the name": (lambda data: data.update(run="run-7"), nothing, "are the same run, run-7"),
    "not scored": (lambda data: data.update(scored=False), nothing, "other: not scored"),
    "python": (nothing, lambda found: found.update(python="3.12.1"), 'python is "3.12.1"'),
    "code": (nothing, lambda found: found["distributions"]["grpo-bench"].update(sha256="0" * 64),
             "other software than run-7: distributions.grpo-bench.sha256 is"),
    "a library": (nothing, lambda found: found["libraries"].update(numpy="1.0"), "libraries.numpy is"),
    "the policy": (nothing, lambda found: found["policy"].update(extra={}), "policy.extra is {}"),
    "tasks": (nothing, lambda found: found["tasks"]["train"].update(sha256="0"), "tasks.train.sha256 is"),
    "the container": (nothing, lambda found: found.update(container={"digest": "sha256:0", "image": None}),
                      "container.digest is"),
    "an environment": (nothing, lambda found: found["locks"].update(trainer={"lock_sha256": "0", "libraries": {}}),
                       'locks.trainer is {"lock_sha256": "0", "libraries": {}}, not absent'),
    "no commit": (nothing, lambda found: found.update(sources={}), "provenance names no commit of its code"),
    "hosts": (lambda data: data["placements"]["trainer"].update(nodes=["a", "b"]), nothing,
              "it ran on 2 nodes, and the system description says number_of_nodes 1"),
}
OF_THE_SYSTEM = {
    "submitter": ("ACME", "submission_org is 'MOCK' in its log, and the system description says submitter 'ACME'"),
    "system_name": ("gb300", "submission_platform is 'gb300-256-mock'"),
    "division": ("open", "submission_division is 'closed'"),
}


@pytest.fixture
def candidate(mocked: Path, events: Sequence[Event]):
    """``candidate(name, seed, change, software)`` is a run with which nothing is wrong beside that."""

    def make(name: str, seed: int, change: Change = nothing, software: Change = nothing) -> Candidate:
        data, statement = deepcopy(dict(events[0].data)), json.loads((mocked / "provenance.json").read_text())
        data |= {"run": name, "seed": seed, "scored": True, "unscored": []}
        change(data)
        software(statement)
        found = [replace(events[0], data=data), *events[1:]]
        log = text(found, MllogConfig(org="MOCK"))
        return Candidate(Path(name), name, (), found, {"provenance.json": statement}, log, read(log))

    return make


@pytest.fixture(scope="module")
def events(mocked: Path) -> Sequence[Event]:
    return [event for event in read_run(mocked) if event.kind not in (Kind.ROLLOUT, Kind.GROUP)]


def refused(runs: Sequence[Candidate], **changes: str) -> list[str]:
    return refusals(runs, described({**SYSTEM, **changes}, Path("system.json")), RULES)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_run_that_differs_is_refused(candidate, name: str) -> None:
    change, software, says = DIFFERENCES[name]
    same = [candidate("run-7", 7), candidate("run-8", 8)]
    assert refused([*same, candidate("run-9", 9)]) == []
    found = refused([*same, candidate("other", 10, change, software)])
    assert any(says in reason for reason in found), found


def test_a_batch_without_a_reference_is_refused_in_the_closed_division(candidate) -> None:
    def larger(data: dict[str, Any], division: str = "closed") -> None:
        data["prompts_per_step"] = 72
        data["settings"]["ruleset"]["division"] = division

    assert refused([candidate(f"run-{number}", number, larger) for number in range(3)]) == [
        "batch 1152: no submission in the closed division can pass yet: checker 4.1.68 knows no run of the reference "
        "above batch 1024"]
    runs = [candidate(f"run-{number}", number, lambda data: larger(data, "open")) for number in range(3)]
    assert refused(runs, division="open") == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_exactly_three_runs_are_packaged(candidate, count: int) -> None:
    assert refused([candidate(f"run-{number}", number) for number in range(count)]) == [
        f"{count} run{'s' * (count > 1)} where a submission has exactly 3"]


@pytest.mark.parametrize("field", OF_THE_SYSTEM)
def test_a_description_of_another_system_is_refused(candidate, field: str) -> None:
    value, says = OF_THE_SYSTEM[field]
    found = refused([candidate(f"run-{number}", number) for number in range(3)], **{field: value})
    assert len(found) == 3 and all(says in reason for reason in found)


def test_a_status_is_compared_where_the_log_has_one(candidate) -> None:
    runs = [candidate(f"run-{number}", number) for number in range(3)]
    logs = [text(run.events, MllogConfig(org="MOCK", status="cloud")) for run in runs]
    found = refused([replace(run, log=log, lines=read(log)) for run, log in zip(runs, logs)])
    assert len(found) == 3 and "submission_status is 'cloud'" in found[0] and "status 'research'" in found[0]
    assert "implementation is called" in refused(runs, system_name="grpo-bench")[0]


def test_every_reason_is_named_at_once(candidate) -> None:
    found = refused([candidate("run-7", 7), candidate("other", 7, setting("limits", "score_s", 17.0),
                                                      lambda found: found.update(python="3.12.1"))])
    assert len(found) == 4
    for says in ("2 runs where", "the same seed, 7", "other settings", "other software"):
        assert any(says in reason for reason in found)


def test_a_run_that_is_not_evaluated_to_its_end_is_refused(package, runs: list[Path]) -> None:
    shutil.rmtree(runs[1] / "eval")
    evaluation = runs[2] / "eval/events.jsonl"
    evaluation.write_text("".join(evaluation.read_text().splitlines(keepends=True)[:-1]))
    code, outcome = package(*runs)
    found = "\n".join(outcome["reasons"])
    assert code == 1
    assert "run-8: not a result: run: end: trained, and not evaluated yet" in found
    assert re.search("run-9: not a result: run: end: .*cut off", found)


def test_a_log_that_was_changed_is_refused(package, runs: list[Path]) -> None:
    log = runs[0] / "mllog.txt"
    log.write_text(log.read_text().replace('"key": "run_stop"', '"key": "run_end"'))
    (runs[1] / "mllog.txt").write_text("no log\n")
    code, outcome = package(*runs)
    assert code == 1
    for run in ("run-7", "run-8"):
        assert any(f"{run}: not a result: observer mllog" in reason for reason in outcome["reasons"])


def test_what_is_no_run_is_an_input_error(system: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["package", "none", "nothing", str(tmp_path), "--system", str(system), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert all(f"{name} is no run folder" in said for name in ("none", "nothing", str(tmp_path)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "says"), [("provenance.json", "does not say what it was made of"),
                                            ("mllog.txt", "cannot be packaged: .*mllog.txt")])
def test_a_run_without_one_of_its_files_is_an_input_error(mocked: Path, tmp_path: Path, name: str, says: str) -> None:
    run = run_like(mocked, tmp_path / "run", 1)
    (run / name).unlink()
    with pytest.raises(RunFolderError, match=says):
        package_candidate(run, "run", (), ())


def test_an_unfinished_description_is_an_input_error(package, system: Path, tmp_path: Path) -> None:
    system.write_text(json.dumps({**SYSTEM, "cooling": ""}))
    assert package(tmp_path)[0] == 2
    assert not (tmp_path / "out").exists()


def test_what_a_checker_refuses_gets_no_name(package, runs: list[Path], tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(submission, "judge_package", lambda *_: ("it does not look right",))
    code, outcome = package(*runs, out="new/out")
    assert code == 1 and "it does not look right" in outcome["reasons"][0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("out", ["taken", "plain", "link"])
def test_nothing_is_replaced(system: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    (tmp_path / "plain").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert main(["package", "run", "--system", str(system), "--out", str(tmp_path / out)]) == 2
    assert f"{tmp_path / out} exists and is no empty folder" in capsys.readouterr().err
    assert (tmp_path / "taken/file").read_text() == (tmp_path / "plain").read_text() == "mine"
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*inside: Not a directory"), whole(tmp_path / "plain/inside"):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left on device")])
def test_a_tree_is_written_whole_or_not_at_all(tmp_path: Path, error: Any) -> None:
    def fail() -> None:
        with whole(tmp_path / "new/out") as made:
            (made / "file").write_text("x")
            raise error

    with pytest.raises(InputError if isinstance(error, OSError) else error):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new/out", tmp_path / "empty"):
        with whole(out) as made:
            (made / "file").write_text("x")
            assert not (out / "file").exists()
        assert (out / "file").read_text() == "x"
