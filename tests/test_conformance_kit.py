"""The conformance kit finds what is wrong: parts that are right but for one thing fail the demand about that thing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpo_bench.testing as kit
import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Kind, canonical, divided
from grpo_bench.engine.clock import run_virtual
from grpo_bench.engine.recorder import Recorder
from grpo_bench.engine.watchdog import watch
from grpo_bench.observers import EVALUATION, journal_sha256, read_run
from grpo_bench.observers.journal import encode
from grpo_bench.observers.summary import summarise
from grpo_bench.testing import EnvironmentSuite, history
from structlog import get_logger

PACKAGE = Path(__file__).parent / "data" / "wrong_parts.py"
HANGS = "hangs: not over after 1.5 s"

WRONG = [  # the role, what is wrong, the demand that it must fail, and what that must say
    ("environment", "unstable", "test_tasks_are_the_same_every_time", "At index 0 diff: Task(id='mock-final-0000'"),
    ("environment", "twins", "test_tasks_are_told_apart", "assert 64 == 96"),
    ("environment", "named", "test_fingerprints_are_of_the_content", "says nothing but the id"),
    ("environment", "leak", "test_hidden_parts_stay_out_of_the_prompt", 'the prompt contains "assert f(1) == 2'),
    ("environment", "bare", "test_prompts_hold_what_is_declared", "lacks ['files', 'path', 'test_command']"),
    ("environment", "more_splits", "test_splits_are_those_declared", "nothing was raised; the result is 64"),
    ("environment", "shared", "test_sandboxes_share_nothing",
     "nothing was raised; the result is 'a secret of the first"),
    ("environment", "no_diff", "test_the_diff_shows_an_edit", "'+# a line more' in []"),
    ("environment", "own_format", "test_its_own_diffs_are_graded", "not graded: it does not apply"),
    ("environment", "picky", "test_junk_is_graded_too", "no patch"),
    ("environment", "ungraded", "test_an_empty_patch_is_graded", "it does not apply"),
    ("environment", "peeks", "test_grading_ignores_the_agents_sandbox", "assert 0.0 == 1.0"),
    ("environment", "once", "test_closing_twice_is_fine", "closed already"),
    ("environment", "hangs", "test_many_sandboxes_at_once", HANGS),
    ("trainer", "nan", "test_every_token_has_a_log_probability", "np.False_"),
    ("trainer", "neighbours", "test_rows_do_not_see_each_other", "Mismatched elements: "),
    ("trainer", "moving_reference", "test_the_reference_stays", "Arrays are not equal"),
    ("trainer", "local_time", "test_an_update_tells_what_it_did", "timedelta(seconds=7200) == "),
    ("trainer", "backwards", "test_an_update_makes_what_was_good_likelier", " > 0"),
    ("trainer", "idle", "test_advantages_decide_whether_weights_move", " != "),
    ("trainer", "unmasked", "test_masked_rows_do_not_train", "comparison failed"),
    ("trainer", "own_counts", "test_the_batchs_own_counts_divide", "comparison failed"),
    ("trainer", "own_counts", "test_a_batch_without_tokens_is_refused",
     "nothing was raised; the result is UpdateStats"),
    ("trainer", "random", "test_equal_updates_give_equal_weights", "assert '"),
    ("trainer", "misordered", "test_tensors_are_what_is_sent", "at the send"),
    ("trainer", "no_tokenizer", "test_saved_weights_are_an_hf_folder", "'tokenizer.json'"),
    ("trainer", "forgetful", "test_a_checkpoint_goes_on", "assert '"),
    ("trainer", "random_hash", "test_equal_weights_have_equal_hashes", "assert '0."),
    ("generator", "next_version", "test_samples_are_well_formed", "assert {1} == {0}"),
    ("generator", "long", "test_replies_end_where_they_should", "65 == 64"),
    ("generator", "shifted", "test_samples_come_from_the_distribution_they_name", "assert 0.5"),
    ("generator", "random", "test_a_stream_decides_what_is_drawn", "Arrays are not equal"),
    ("generator", "one_stream", "test_a_stream_decides_what_is_drawn", "all streams draw the same"),
    ("generator", "crowded", "test_neighbours_change_nothing", "Mismatched elements: 64 / 64"),
    ("generator", "lenient", "test_other_sampling_is_refused", "nothing was raised; the result is Sample"),
    ("generator", "never_pauses", "test_nothing_is_admitted_while_paused", "a request was answered during a pause"),
    ("generator", "keeps_weights", "test_new_weights_leave_no_cache_behind", "still answers with the old weights"),
    ("generator", "takes_nothing", "test_new_weights_leave_no_cache_behind", "before every engine had taken"),
    ("generator", "patient", "test_a_deadline_is_kept", HANGS),
    ("generator", "patient", "test_weights_that_never_come_are_an_error", HANGS),
    ("agent", "endless", "test_a_policy_that_says_nothing_ends_it", "does not end after 1000 replies"),
    ("agent", "fails", "test_a_reply_cut_off_ends_it", "not <End.FAILED"),
    ("agent", "edits", "test_replies_stay_as_they_were", "nobody replied {'role': 'assistant', 'content': '...'"),
    ("agent", "silent", "test_every_call_is_answered_once", "were answered as []"),
    ("agent", "one_id", "test_every_call_is_answered_once", "were answered as ['call_0_0', 'call_0_0']"),
    ("agent", "leaks", "test_hidden_parts_stay_hidden", "'hidden-tests-of-this-task' is contained here"),
    ("agent", "mute", "test_the_policy_sees_the_statement", '"content": "Go on."'),
    ("agent", "deaf", "test_being_cancelled_ends_it", HANGS),
    ("agent", "strict", "test_unknown_tools_are_answered", "no such tool"),
    ("agent", "remembers", "test_rollouts_do_not_hear_each_other", "said in another one at the same time"),
    ("agent", "learns", "test_rollouts_do_not_hear_each_other", "begins otherwise than the first"),
    ("hardware", "none", "test_everybody_gets_a_place", "Placement(workers=0"),
    ("hardware", "forgets", "test_everybody_gets_a_place", "left out: ['rollout']"),
    ("hardware", "knows_better", "test_wanted_numbers_are_kept", "{'generator': 1} != {'generator': 2}"),
    ("hardware", "odd_facts", "test_facts_are_json", "type set is not JSON serializable"),
    ("ruleset", "raises", "test_unusual_profiles_are_findings", "only one step"),
    ("ruleset", "backwards", "test_a_pace_is_least_and_most", "assert False"),
    ("ruleset", "numbers", "test_the_schedule_answers_for_every_step", "assert False"),
    ("ruleset", "contrary", "test_more_is_never_worse", "At index 0 diff: True != False"),
    ("ruleset", "timed", "test_findings_are_json", "'NoneType' object has no attribute 'monotonic'"),
    ("ruleset", "raises", "test_runs_that_are_over_are_judged", "no end"),
    ("observer", "misspelt", "test_it_listens", "unknown hook 'run_has_ended'"),
    ("observer", "knows_all", "test_it_takes_what_it_does_not_know", "of a later version"),
    ("observer", "starts_once", "test_it_takes_a_run_that_goes_on", "it has begun before"),
    ("observer", "counts_on", "test_it_takes_a_deferred_evaluation", "event 0 after"),
    ("observer", "alters", "test_it_changes_nothing", "assert '[{"),
    ("observer", "litters", "test_it_writes_into_the_runs_folder_only", "left in the folder for working directory"),
    ("observer", "settles", "test_it_writes_into_the_runs_folder_only", "left in the folder for home"),
    ("observer", "leaves", "test_it_writes_into_the_runs_folder_only", "left in the folder for temporary files"),
    ("observer", "witnesses", "test_its_findings_are_json", "KeyError: 'run_started'"),
]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution of parts named ``wrong`` on the import path; the option ``wrong`` says what is."""
    site = tmp_path / "site"
    (site / "wrong_parts").mkdir(parents=True)
    (site / "wrong_parts" / "__init__.py").write_text(PACKAGE.read_text())
    info = site / "wrong_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-parts\nVersion: 1.0\n")
    roles = ("trainer", "generator", "environment", "agent", "hardware", "ruleset", "observer")
    (info / "entry_points.txt").write_text("".join(
        f"[grpo_bench.{role}]\nwrong = wrong_parts:{role}\n" for role in roles))
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("wrong_parts", None)


def attempt(role: str, wrong: str, demand: str, folder: Path, timeout_s: float = 60.0) -> None:
    folder.mkdir()
    suite = type("Tried", (getattr(kit, kit.SUITES[role]),), {
        "plugin": "wrong", "options": {"wrong": wrong}, "timeout_s": timeout_s})()
    with suite.prepared(folder) as rig:
        getattr(suite, demand)(rig)


@pytest.mark.parametrize(("role", "wrong", "demand", "says"), WRONG)
def test_what_is_wrong_is_found(parts: Path, tmp_path: Path, role: str, wrong: str, demand: str, says: str) -> None:
    attempt(role, "", demand, tmp_path / "right")
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        attempt(role, wrong, demand, tmp_path / "wrong", 1.5 if says == HANGS else 60.0)
    assert says in f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(("role", "odd", "demand"), [
    ("agent", "shows_how", "test_replies_stay_as_they_were"), ("hardware", "full", "test_wanted_numbers_are_kept")])
def test_what_is_odd_but_right_passes(parts: Path, tmp_path: Path, role: str, odd: str, demand: str) -> None:
    attempt(role, odd, demand, tmp_path / "odd")


def test_known_failures_name_demands() -> None:
    with pytest.raises(TypeError, match=r"Odd.known_failures: no demand test_nothing; there are test_a_command_that"):
        type("Odd", (EnvironmentSuite,), {"plugin": "wrong", "known_failures": {"test_nothing": "no reason"}})


def test_the_kits_history_has_the_form_of_a_runs(virtual: Any) -> None:
    finished = virtual("grpo.prompts_per_step=2", "grpo.generations_per_prompt=2", "grpo.max_steps=2",
                       "validation.max_tasks=2", "validation.period=1", "checkpoint.period=1")
    told = {event.kind: set(event.data) for event in history.whole_run()}
    seen = {event.kind: set(event.data) for event in finished.events}
    assert set(told) == set(Kind) - {Kind.ERROR, Kind.RESUMED, Kind.EVALUATION_STARTED}
    assert {kind: told[kind] for kind in seen} == seen
    started, real = history.whole_run()[0].data, finished.events[0].data
    assert set(started["settings"]) == set(real["settings"]) and set(started["tasks"]) == set(real["tasks"])
    assert set(started["parts"]) == set(real["parts"]) and set(started["placements"]) == set(real["placements"])
    assert all(set(part) == set(real["parts"]["agent"]) for part in started["parts"].values())


def test_the_kits_histories_are_journals(tmp_path: Path) -> None:
    for name, events in (("whole", history.whole_run()), ("failed", history.failed_run()),
                         ("resumed", [event for part in history.resumed_run() for event in part])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text("".join(map(encode, events)))
        assert list(read_run(tmp_path / name)) == events


def test_the_kits_deferred_run_is_two_journals(tmp_path: Path) -> None:
    training, evaluation = history.deferred_run()
    (tmp_path / EVALUATION).mkdir()
    (tmp_path / "events.jsonl").write_text("".join(map(encode, training)))
    sha256 = journal_sha256(tmp_path / "events.jsonl")
    evaluation[0] = replace(evaluation[0], data={**evaluation[0].data, "training_sha256": sha256})
    (tmp_path / EVALUATION / "events.jsonl").write_text("".join(map(encode, evaluation)))
    assert list(read_run(tmp_path)) == [*training, *evaluation]
    assert divided(read_run(tmp_path)) == (training, evaluation)


def test_the_kits_stall_is_the_watchdogs() -> None:
    async def describe() -> dict[str, Any]:
        return {"waiting": told.data["waiting"], "stacks": {}}

    async def main(clock: Any) -> None:
        watching = asyncio.create_task(watch(Recorder(clock, seen.append), clock, 130.0, describe, get_logger()))
        await asyncio.sleep(200)
        watching.cancel()

    told, seen = next(event for event in history.whole_run() if event.kind == Kind.STALL), []
    run_virtual(main)
    stall, = seen
    assert {key: type(value) for key, value in stall.data.items()} == {
        key: type(value) for key, value in told.data.items()}
    assert isinstance(told.data["waiting"], dict)


def test_the_kits_histories_hold_together() -> None:
    assert summarise(history.whole_run())["status"] == "target_met"
    assert summarise(history.failed_run())["status"] == "failed"
    training, evaluation = history.deferred_run()
    assert summarise(training)["status"] == "trained"
    summary = summarise([*training, *evaluation])
    assert (summary["status"], summary["steps"]) == ("target_met", history.STEPS)
    assert summary["time_to_target_s"] < summary["wall_s"]
    first, second = history.resumed_run()
    assert [event.seq for event in [*first, *second]] == list(range(len(first) + len(second)))
    whole, gone_on = canonical(history.whole_run()), canonical([*first, *second])
    assert [(event.kind, event.step) for event in gone_on] == [(event.kind, event.step) for event in whole]


FILE = """
from grpo_bench.testing import EnvironmentSuite

class TestWrong(EnvironmentSuite):
    plugin = "wrong"
    options = {"wrong": "no_diff"}
    known_failures = {"test_the_diff_shows_an_edit": "there is none", "test_junk_is_graded_too": "it is too picky"}
"""


def test_a_known_failure_that_heals_is_noticed(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(FILE)
    path = ":".join([str(parts), *(item for item in sys.path if item)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--rootdir", str(tmp_path), "-p", "no:cacheprovider",
         str(tmp_path / "test_wrong.py"), "-k", "diff or junk"], capture_output=True, text=True, timeout=120,
        check=False, env={"PYTHONPATH": path, "PATH": "/usr/bin"})
    assert "1 failed, 2 passed" in done.stdout and "1 xfailed" in done.stdout, done.stdout
    assert "[XPASS(strict)] it is too picky" in done.stdout


def test_the_check_goes_on_after_a_crash_and_a_hang(parts: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join([str(parts), *(item for item in sys.path if item)]))
    monkeypatch.setattr("grpo_bench.testing.checking.GRACE_S", 3.0)
    arguments = ["plugins", "check", "wrong", "--role", "hardware", "--timeout", "5", "--json"]
    found = {}
    for wrong in ("crashes", "ends_last", "blocks"):
        assert main([*arguments, "--set", f"wrong={wrong}"]) == 1
        one, = json.loads(capsys.readouterr().out)
        found[wrong] = {item["name"]: (item["outcome"], item["reason"]) for item in one["demands"]}
        assert len(found[wrong]) == len(kit.HardwareSuite.demands())
        assert found[wrong]["test_everybody_gets_a_place"] == ("ok", "")
    last = "test_the_same_needs_get_the_same_places"
    assert list(found["ends_last"].items())[-1] == (last, ("FAILED", "the process exited with code 0"))
    assert found["crashes"]["test_facts_are_json"] == ("FAILED", "the process was killed by SIGSEGV")
    assert found["blocks"]["test_facts_are_json"][0] == "FAILED"
    assert found["blocks"]["test_facts_are_json"][1].startswith("hangs: ")


def test_the_check_shows_each_demand(parts: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join([str(parts), *(item for item in sys.path if item)]))
    assert main(["plugins", "check", "wrong", "--role", "ruleset", "--set", "wrong=contrary"]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "ruleset wrong of wrong-parts 1.0: ok"
    assert any(line.startswith("FAILED test_more_is_never_worse: ") for line in lines)
    assert "skipped test_facts_for_the_plan_are_json: its descriptor has no describe" in lines
    assert "known failure test_checking_changes_nothing: for show" in lines
    assert lines[-1].startswith("13 demands: ")
    assert main(["plugins", "check", "wrong", "--role", "ruleset", "--set", "wron=1"]) == 2
    assert "--set wron: unknown key; did you mean 'wrong'?" in capsys.readouterr().err
    assert main(["plugins", "check", "wrong", "--role", "ruleset", "--fabric", "inlin"]) == 2
    assert "no fabric plugin named 'inlin' is installed; did you mean 'inline'?" in capsys.readouterr().err
    assert main(["plugins", "check", "--role", "rules"]) == 2
    assert "--role rules: no such role; did you mean 'ruleset'?" in capsys.readouterr().err
