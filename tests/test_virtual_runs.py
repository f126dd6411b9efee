"""The engine as a whole, with mock plugins, in virtual time."""

import errno
import itertools
import json
import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo_bench.contract import InputError, Kind, Phase, Plugin, PluginError, Role, RunFolderError, Status
from grpo_bench.engine import conduct, make_folder, run_virtual
from grpo_bench.engine.assembly import Assembly
from grpo_bench.registry import Part, make_plan, resolve

SMALL = ("grpo.max_steps=6", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=3", "validation.period=3",
         "validation.metric=off", "validation.target=off")


def ended(run):
    return run.of(Kind.RUN_ENDED)[0].data


def test_an_hour_of_modelled_time_passes_and_every_second_of_it_has_a_phase(virtual):
    run = virtual(*SMALL, "trainer.update_s=300", "trainer.log_probabilities_s=60", "generator.token_s=5",
                  "generator.receive_s=45", "environment.exec_s=20", "environment.score_s=15", "limits.request_s=3000",
                  "limits.rollout_s=20000", "environment.open_s=10")
    assert run.outcome.status is not Status.FAILED, run.outcome.error
    assert ended(run)["wall_s"] > 3600
    assert sum(ended(run)["ledger"].values()) == pytest.approx(ended(run)["wall_s"])
    assert ended(run)["ledger"][Phase.UPDATE] == pytest.approx(6 * 300)
    assert ended(run)["ledger"][Phase.REFIT] >= 7 * 45
    assert [event.seq for event in run.events] == list(range(len(run.events)))
    assert all(before.elapsed_s <= after.elapsed_s for before, after in itertools.pairwise(run.events))


def test_a_step_consumes_exactly_its_prompts_in_order(virtual):
    run = virtual(*SMALL)
    groups = [event.data for event in run.of(Kind.GROUP)]
    assert sorted(group["group_id"] for group in groups) == list(range(24))
    assert all(group["target"] == group["group_id"] // 4 for group in groups)
    assert [event.data["rollouts"] for event in run.of(Kind.STEP)] == [12] * 6
    assert [event.data["version"] for event in run.of(Kind.REFIT)] == list(range(7))


def test_two_runs_of_one_seed_are_equal_and_another_seed_differs(virtual):
    first, second, other = virtual(*SMALL, seed=3), virtual(*SMALL, seed=3), virtual(*SMALL, seed=4)
    assert first.timeless() == second.timeless()
    assert ended(first)["weights_sha256"] == ended(second)["weights_sha256"] != ended(other)["weights_sha256"]


def test_the_run_stops_at_the_first_validation_that_meets_the_target(virtual):
    run = virtual(*SMALL, "validation.metric=pass_k", "validation.target=0.01")
    assert run.outcome.status is Status.TARGET_MET
    met = [event for event in run.of(Kind.VALIDATION) if event.data["target_met"]]
    assert met == run.of(Kind.VALIDATION)[-1:]
    assert ended(run)["time_to_target_s"] == pytest.approx(met[0].elapsed_s)
    assert ended(run)["value"] == met[0].data["metrics"]["pass_k"]


def test_without_a_metric_all_steps_run(virtual):
    run = virtual(*SMALL)
    assert run.outcome.status is Status.COMPLETED
    assert (ended(run)["steps"], ended(run)["target"]) == (6, None)


def test_a_target_that_is_never_met_is_missed(virtual):
    run = virtual(*SMALL, "validation.metric=pass_hat_k", "validation.target=1.0", "generator.base_skill=-9.0")
    assert run.outcome.status is Status.TARGET_MISSED


ASYNC = ("schedule.mode=async", "deterministic=false")
SLOW = ("generator.token_s=1", "trainer.update_s=40", "limits.request_s=1000", "limits.rollout_s=5000", *SMALL,
        "validation.period=100")


@pytest.mark.parametrize("in_flight", ["drain", "keep"])
@pytest.mark.parametrize("max_age", [1, 2])
def test_async_rollouts_overlap_updates_within_the_age_bound(virtual, max_age, in_flight):
    sync = virtual(*SLOW)
    overlapped = virtual(*SLOW, *ASYNC, f"schedule.max_age={max_age}", f"schedule.in_flight={in_flight}")
    assert overlapped.outcome.status is Status.COMPLETED, overlapped.outcome.error
    groups = [event.data for event in overlapped.of(Kind.GROUP)]
    ages = {group["target"] - group["oldest_version"] for group in groups}
    assert sorted(group["group_id"] for group in groups) == list(range(24))
    assert 1 <= max(ages) <= max_age
    assert ended(overlapped)["wall_s"] < ended(sync)["wall_s"]


def test_what_was_recorded_before_a_checkpoint_is_in_it(virtual):
    run = virtual(*SLOW, *ASYNC, "schedule.max_age=1", "checkpoint.period=1", "trainer.save_s=5000",
                  "checkpoint.keep=9", "limits.checkpoint_s=9000", "grpo.max_steps=3")
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    groups = set()
    for event in run.events:
        if event.kind == Kind.GROUP:
            groups.add(event.data["group_id"])
        if event.kind == Kind.CHECKPOINT and event.data["what"] == "full":
            state = json.loads((run.outcome.folder / "checkpoints" / event.data["folder"] / "state.json").read_text())
            saved = {group["group_id"] for group in state["buffer"]["finished"]}
            assert saved == groups - set(range(4 * event.step))
            assert saved or event.step == 3
            assert not saved & set(state["buffer"]["wanted"])


def test_validation_has_the_engines_for_itself(virtual):
    run = virtual(*SLOW, *ASYNC, "schedule.max_age=1", "validation.period=1", "grpo.max_steps=3",
                  "limits.concurrency=3")
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    phase, ended_in = None, set()
    for event in run.events:
        phase = event.data["phase"] if event.kind == Kind.PHASE else phase
        if event.kind == Kind.ROLLOUT:
            ended_in.add((phase, event.data["purpose"]))
    assert (Phase.VALIDATION, "validation") in ended_in
    assert (Phase.VALIDATION, "train") not in ended_in
    assert (Phase.DRAIN, "train") in ended_in


def test_validation_has_the_engines_for_itself_although_one_was_lost_before_it(virtual):
    """A drain during which an engine is lost ends early; what it held up is finished before the validation."""
    run = virtual(*ASYNC, "schedule.max_age=1", "hardware.workers=2", "grpo.max_steps=4", "grpo.prompts_per_step=4",
                  "grpo.generations_per_prompt=3", "validation.max_tasks=4", "validation.period=1",
                  "validation.metric=off", "validation.target=off", "checkpoint.period=0", "generator.token_s=0.01",
                  "trainer.update_s=5", "limits.engine_restarts=100", "limits.rollout_retries=5",
                  "limits.concurrency=2", 'generator.faults=[{at = "generate", kind = "break", call = 24}]')
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    assert any(event.data["name"] == "engine_lost" for event in run.of(Kind.ALARM))
    validating = [(before.elapsed_s, after.elapsed_s) for before, after in itertools.pairwise(run.of(Kind.PHASE))
                  if before.data["phase"] == Phase.VALIDATION]
    assert len(validating) == 4
    for event in run.of(Kind.ROLLOUT):
        if event.data["purpose"] == "train":
            began = event.elapsed_s - sum(value for hop, value in event.data["durations"].items() if hop != "queue")
            beside = max(min(event.elapsed_s, end) - max(began, start) for start, end in validating)
            assert beside < 1e-4, event.data["rollout_id"]


def test_a_disk_that_refuses_the_record_ends_the_run_and_leaves_nothing_behind(virtual, tmp_path, monkeypatch):
    writes = itertools.count()
    pwrite, mkdtemp, made = os.pwrite, tempfile.mkdtemp, []

    def refusing(fd, data, offset):
        if next(writes) == 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, offset)

    def noting(*args, **kwargs):
        made.append(Path(mkdtemp(*args, **kwargs)))
        return str(made[-1])

    monkeypatch.setattr(os, "pwrite", refusing)
    monkeypatch.setattr(tempfile, "mkdtemp", noting)
    run = virtual(*SMALL)
    assert run.outcome.status is Status.FAILED
    assert "No space left on device" in str(run.outcome.error) and "make room" in str(run.outcome.error)
    assert len(run.events) == 100
    assert made and not any(folder.exists() for folder in made)


def test_a_disk_that_fills_up_as_a_part_fails_hides_neither_the_error_nor_the_parts(virtual, monkeypatch):
    pwrite, closed = os.pwrite, []

    def refusing(fd, data, offset):
        if b'"kind":"error"' in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, offset)

    async def noting(self):
        closed.append(self)

    monkeypatch.setattr(os, "pwrite", refusing)
    monkeypatch.setattr(Assembly, "close", noting)
    run = virtual(*SMALL, 'trainer.faults=[{at = "update", kind = "raise", step = 2}]')
    assert run.outcome.status is Status.FAILED
    assert "update" in str(run.outcome.error) and "role trainer" in str(run.outcome.error)
    assert (run.outcome.summary["status"], run.outcome.summary["steps"]) == ("failed", 1)
    assert closed


def test_rollouts_that_fail_are_tried_again_and_never_rewarded(virtual):
    run = virtual(*SMALL, 'environment.faults=[{at = "open", kind = "raise", share = 0.3}]',
                  "limits.max_failed_share=1.0", "limits.rollout_retries=1")
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    failed = [event.data for event in run.of(Kind.ROLLOUT) if event.data["end"] == "failed"]
    assert failed
    assert all(data["reward"] is None and data["cause"] == "sandbox_start" for data in failed)
    assert {data["attempt"] for data in failed} == {0, 1}
    lost = sum(data["attempt"] == 1 and data["purpose"] == "train" for data in failed)
    counted = sum(sum(event.data["not_samples"].values()) for event in run.of(Kind.BATCH))
    assert counted == lost


def test_too_many_failed_rollouts_stop_the_run_with_the_cause(virtual):
    run = virtual(*SMALL, 'environment.faults=[{at = "open", kind = "raise"}]')
    assert run.outcome.status is Status.FAILED
    message = str(run.outcome.error)
    for part in ("12 of 12 rollouts", "12 sandbox_start", "limits.max_failed_share", "step 1"):
        assert part in message


@pytest.mark.parametrize(("fault", "says"), [
    ('trainer.faults=[{at = "update", step = 2, kind = "raise"}]', "plugin mock, role trainer, step 2"),
    ('trainer.faults=[{at = "update", step = 2, kind = "hang"}]', "limits.update_s"),
    ('generator.faults=[{at = "receive", step = 1, kind = "hang"}]', "limits.refit_s"),
    ('generator.faults=[{at = "receive", step = 1, kind = "raise"}]', "plugin mock, role generator, step 1"),
    ('generator.faults=[{at = "receive", step = 1, kind = "wrong"}]', "refit.probe_bound"),
    ('generator.faults=[{at = "probe", step = 1, kind = "nan"}]', "refit.probe_bound"),
    ('generator.faults=[{at = "probe", step = 1, kind = "raise"}]', "the generator does not answer the probe"),
    ('generator.faults=[{at = "resume", step = 1, kind = "hang"}]', "resuming the generator took longer"),
    ('generator.faults=[{at = "generate", kind = "hang"}]', "no reply within 300 s"),
    ('generator.faults=[{at = "start", kind = "hang"}]', "limits.start_s"),
])
def test_a_part_that_fails_ends_the_run_in_bounded_time_with_a_message_that_names_it(virtual, fault, says):
    run = virtual(*SMALL, fault)
    assert run.outcome.status is Status.FAILED
    recorded = run.of(Kind.ERROR)[0].data
    assert says in str(run.outcome.error) or says in str(recorded), str(run.outcome.error)
    assert ended(run)["wall_s"] < 10 * 3600
    assert run.events[-1].kind == Kind.RUN_ENDED


def test_a_run_folder_that_the_disk_refuses_leaves_nothing(tmp_path, monkeypatch):
    plan = make_plan(resolve("mock", cwd=tmp_path))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFolderError, match=r"cannot write a run folder in .*: No space left on device"):
        make_folder(plan, tmp_path, datetime.now(UTC))
    assert not list(tmp_path.iterdir())


def test_an_observer_that_cannot_be_made_is_named(tmp_path):
    plan = make_plan(resolve("mock", cwd=tmp_path))
    broken = Plugin(name="broken", role=Role.OBSERVER, summary="", config=dict, factory="json:loads")
    plan = replace(plan, observers=(Part(Role.OBSERVER, broken, {}, "none", "0", {}),))
    with pytest.raises(PluginError, match=r"TypeError.*plugin broken, role observer"):
        run_virtual(lambda clock: conduct(plan, tmp_path, clock))
    assert "the attempt cannot begin" in (log := (tmp_path / "engine.log").read_text())
    assert "the JSON object must be" in log


def test_a_silent_run_is_reported_with_what_it_waits_for(virtual):
    run = virtual(*SMALL, 'generator.faults=[{at = "generate", kind = "hang", call = 5}]',
                  "limits.max_failed_share=1.0")
    stall = run.of(Kind.STALL)[0].data
    assert stall["waiting"]["phase"] == Phase.ROLLOUT
    assert stall["waiting"]["prompts"]
    assert any("agent" in str(worker) for worker in stall["waiting"]["rollouts"])


def test_a_split_that_the_environment_does_not_have_is_an_input_error(virtual):
    with pytest.raises(InputError, match="nosuch"):
        virtual(*SMALL, "grpo.split=nosuch")
