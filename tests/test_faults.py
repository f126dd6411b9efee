"""Parts that fail, in virtual time: every failure ends the run in bounded time with one line that says who, where and
what to do, keeps its traceback in the log, gives no rewards, and leaves a run that can be resumed once it is mended."""

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo_bench.contract import Kind, Phase, Status, canonical
from grpo_bench.engine import EXIT_CODES, conduct, make_folder, run_virtual
from grpo_bench.engine.resume import prepare
from grpo_bench.observers import read_events
from grpo_bench.registry import make_plan, resolve

STEPS = 6
SMALL = (f"grpo.max_steps={STEPS}", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=3", "validation.period=3",
         "validation.max_tasks=2", "validation.metric=off", "validation.target=off", "checkpoint.period=2",
         "generator.look_share=0.7", "generator.token_s=0.01")
LATE = {"log_probabilities": 5, "update": 5, "send": 5, "pause": 4, "receive": 5, "resume": 5, "probe": 5,
        "generate": 4}
"""Points that know a step or a version: there the fault strikes in the fifth step, or at the refit after it."""


def run(folder, *overrides):
    plan = make_plan(resolve("mock", overrides=(*SMALL, *overrides), cwd=folder), 0)
    made = make_folder(plan, folder / "runs", datetime.now(UTC))
    return run_virtual(lambda clock: conduct(plan, made, clock))


def of(events, kind):
    return [event for event in events if event.kind == kind]


def mend(folder, role):
    """What a person does about a broken part: the same run without the faults, which only ``--force`` accepts."""
    profile = json.loads((folder / "profile.json").read_text())
    profile[role]["faults"] = []
    (folder / "profile.json").write_text(json.dumps(profile))


def go_on(folder):
    plan, resumption = prepare(folder, force=True)
    return run_virtual(lambda clock: conduct(plan, folder, clock, resumption=resumption))


def logged(folder):
    return [json.loads(line) for line in (folder / "engine.log").read_text().splitlines()]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """What the same run comes to where nothing fails."""
    outcome = run(tmp_path_factory.mktemp("clean"))
    assert outcome.status is Status.COMPLETED
    return outcome.summary["weights_sha256"]


FAULTS = [
    ("trainer", "start", "raise", "", "engine.log"),
    ("trainer", "start", "hang", "its start took longer than 1800 s", "limits.start_s"),
    ("trainer", "log_probabilities", "raise", "step 5", "engine.log"),
    ("trainer", "log_probabilities", "hang", "step 5", "limits.update_s"),
    ("trainer", "log_probabilities", "nan", "log-probabilities from the trainer are no numbers", "events.jsonl"),
    ("trainer", "update", "raise", "step 5", "engine.log"),
    ("trainer", "update", "hang", "step 5", "limits.update_s"),
    ("trainer", "update", "nan", "the update's loss is nan", "learning rate"),
    ("trainer", "send", "raise", "step 5", "limits.refit_s"),
    ("trainer/generator", "send", "hang", "not finished in time", "limits.refit_s"),
    ("trainer/generator", "send", "wrong", "log-probabilities differ", "refit.probe_bound"),
    ("trainer/generator", "send", "nan", "differ from the trainer's by nan", "refit.probe_bound"),
    ("trainer", "save", "raise", "step 2", "engine.log"),
    ("trainer", "save", "hang", "step 2", "limits.checkpoint_s"),
    ("generator", "start", "raise", "", "engine.log"),
    ("generator", "start", "hang", "its start took longer than 1800 s", "limits.start_s"),
    ("generator", "generate", "raise", "task mock-train-0016, step 5", "limits.max_failed_share"),
    ("generator", "generate", "hang", "no reply within 300 s", "limits.max_failed_share"),
    ("generator", "generate", "nan", "log-probabilities from the generator are no numbers", "events.jsonl"),
    ("generator", "pause", "raise", "step 5", "engine.log"),
    ("generator", "pause", "hang", "step 5", "limits.refit_s"),
    ("generator", "receive", "raise", "step 5", "limits.refit_s"),
    ("trainer/generator", "receive", "hang", "generator: not finished in time", "limits.refit_s"),
    ("trainer/generator", "receive", "wrong", "log-probabilities differ", "refit.probe_bound"),
    ("trainer/generator", "receive", "nan", "differ from the trainer's by nan", "refit.probe_bound"),
    ("generator", "resume", "raise", "step 5", "engine.log"),
    ("generator", "resume", "hang", "step 5", "limits.refit_s"),
    ("generator", "probe", "raise", "does not answer the probe", "engine.log"),
    ("trainer/generator", "probe", "hang", "the probe after the refit", "limits.refit_s"),
    ("trainer/generator", "probe", "nan", "differ from the trainer's by nan", "refit.probe_bound"),
    ("environment", "start", "raise", "rollout-0.start", "engine.log"),
    ("environment", "start", "hang", "the start of the rollout workers", "limits.start_s"),
    ("environment", "open", "raise", "12 sandbox_start", "limits.max_failed_share"),
    ("environment", "open", "hang", "sandbox_start took longer than 60 s", "limits.max_failed_share"),
    ("environment", "exec", "raise", "told to fail at exec", "limits.max_failed_share"),
    ("environment", "diff", "raise", "12 environment", "limits.max_failed_share"),
    ("environment", "diff", "hang", "while at diff", "limits.max_failed_share"),
    ("environment", "score", "raise", "12 score", "limits.max_failed_share"),
    ("environment", "score", "hang", "score took longer than 120 s", "limits.max_failed_share"),
    ("environment", "score", "nan", "no reward (nan)", "limits.max_failed_share"),
    ("agent", "run", "raise", "12 agent", "limits.max_failed_share"),
    ("agent", "run", "hang", "longer than 1800 s, while at agent", "limits.max_failed_share"),
]
PER_ROLLOUT = ("generate", "open", "exec", "diff", "score", "run")


@pytest.fixture
def temporary(monkeypatch):
    """All temporary folders that are made from here on."""
    made, mkdtemp = [], tempfile.mkdtemp

    def noting(*args, **kwargs):
        made.append(Path(mkdtemp(*args, **kwargs)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noting)
    return made


@pytest.mark.parametrize(("role", "point", "kind", "says", "advises"), FAULTS)
def test_a_part_that_fails_ends_the_run_with_one_line_and_can_be_mended(tmp_path, weights, temporary, role, point,
                                                                        kind, says, advises):
    owner = "generator" if point in ("receive", "probe") else role.partition("/")[0]
    when = f", step = {LATE[point]}" if point in LATE else ""
    outcome = run(tmp_path, f'{owner}.faults=[{{at = "{point}", kind = "{kind}"{when}}}]')
    assert (outcome.status, EXIT_CODES[outcome.status], outcome.summary["status"]) == (Status.FAILED, 1, "failed")

    line = str(outcome.error)
    plugins = "/".join("mock" for _ in role.split("/"))
    for part in (f"plugin {plugins}, role {role}", says, advises, f"grpo-bench resume {outcome.folder}"):
        assert part in line
    assert "\n" not in line
    if point in PER_ROLLOUT and kind != "nan":
        assert "task mock-" in line

    events = list(read_events(outcome.folder))
    (recorded,) = of(events, Kind.ERROR)
    assert (recorded.data["role"], recorded.data["plugin"]) == (role, plugins)
    assert (events[-1].kind, events[-1].data["status"]) == (Kind.RUN_ENDED, "failed")
    assert events[-1].elapsed_s < 12 * 3600
    failures = [entry for entry in logged(outcome.folder) if entry["event"] == "run failed"]
    assert "Traceback (most recent call last)" in failures[0]["exception"]

    assert temporary and not any(folder.exists() for folder in temporary)

    mend(outcome.folder, owner)
    resumed = go_on(outcome.folder)
    assert resumed.status is Status.COMPLETED, resumed.error
    assert (resumed.summary["steps"], resumed.summary["attempts"]) == (STEPS, 2)
    assert resumed.summary["weights_sha256"] == weights


@pytest.mark.parametrize("in_flight", ["drain", "keep"])
@pytest.mark.parametrize(("role", "point", "kind", "says"), [
    ("trainer", "update", "raise", "role trainer, step 5"),
    ("trainer", "update", "hang", "limits.update_s"),
    ("generator", "receive", "raise", "role generator, step 5"),
    ("generator", "pause", "hang", "limits.refit_s"),
    ("generator", "generate", "hang", "no reply within 300 s"),
    ("agent", "run", "hang", "while at agent"),
])
def test_with_rollouts_in_flight_a_failure_ends_the_run_alike(tmp_path, temporary, in_flight, role, point, kind, says):
    when = f", step = {LATE[point]}" if point in LATE and point != "generate" else ""
    fault = f'{role}.faults=[{{at = "{point}", kind = "{kind}"{when}}}]'
    outcome = run(tmp_path, "schedule.mode=async", "schedule.max_age=1", f"schedule.in_flight={in_flight}",
                  "deterministic=false", "trainer.update_s=2", fault)
    assert outcome.status is Status.FAILED
    assert says in str(outcome.error) and "plugin mock" in str(outcome.error)
    assert temporary and not any(folder.exists() for folder in temporary)
    mend(outcome.folder, role)
    resumed = go_on(outcome.folder)
    assert resumed.status is Status.COMPLETED, resumed.error
    history = canonical(read_events(outcome.folder))
    groups = [event.data for event in of(history, Kind.GROUP)]
    assert sorted(group["group_id"] for group in groups) == list(range(4 * STEPS))
    assert all(0 <= group["target"] - group["oldest_version"] <= 1 for group in groups)


def test_no_rollout_starts_before_the_generator_has_the_first_weights(tmp_path):
    outcome = run(tmp_path, 'generator.faults=[{at = "receive", kind = "late", seconds = 500}]', "grpo.max_steps=1")
    kinds = [event.kind for event in read_events(outcome.folder)]
    assert kinds.index(Kind.REFIT) < kinds.index(Kind.ROLLOUT)
    queued = [event.data["durations"]["queue"] for event in of(read_events(outcome.folder), Kind.ROLLOUT)]
    assert max(queued) < 500


@pytest.mark.parametrize(("role", "point", "kind", "cause", "end"), [
    ("environment", "open", "raise", "sandbox_start", "failed"),
    ("environment", "open", "hang", "sandbox_start", "timeout"),
    ("environment", "score", "nan", "score", "failed"),
    ("environment", "diff", "hang", "environment", "timeout"),
    ("agent", "run", "raise", "agent", "failed"),
    ("agent", "run", "hang", "deadline", "timeout"),
    ("generator", "generate", "raise", "generator", "failed"),
    ("generator", "generate", "hang", "generator", "timeout"),
])
def test_rollouts_that_fail_are_counted_by_cause_and_have_no_reward(tmp_path, role, point, kind, cause, end):
    outcome = run(tmp_path, f'{role}.faults=[{{at = "{point}", kind = "{kind}", share = 0.3}}]',
                  "limits.max_failed_share=1.0", "limits.rollout_retries=0")
    assert outcome.status is Status.COMPLETED, outcome.error
    events = list(read_events(outcome.folder))
    ended = [event.data for event in of(events, Kind.ROLLOUT)]
    lost = [data for data in ended if data["cause"] is not None]
    assert 0 < len(lost) < len(ended)
    assert {(data["cause"], data["end"], data["reward"]) for data in lost} == {(cause, end, None)}
    assert all(data["reward"] in (0.0, 1.0) for data in ended if data["cause"] is None)
    counted = sum(sum(event.data["not_samples"].values()) for event in of(events, Kind.BATCH))
    assert counted == sum(data["purpose"] == "train" for data in lost)
    in_groups = [reward for event in of(events, Kind.GROUP) for reward in event.data["rewards"]]
    assert in_groups.count(None) == counted


def test_a_generator_that_answers_no_numbers_now_and_then_is_masked_and_counted(tmp_path):
    outcome = run(tmp_path, 'generator.faults=[{at = "generate", kind = "nan", share = 0.2}]')
    assert outcome.status is Status.COMPLETED, outcome.error
    masked = [event.data["masked"] for event in of(read_events(outcome.folder), Kind.BATCH)]
    assert sum(counts.get("log_probability_error", 0) for counts in masked) > 0


def test_a_part_that_is_late_but_in_time_changes_nothing(tmp_path, weights):
    outcome = run(tmp_path, 'trainer.faults=[{at = "update", kind = "late", seconds = 3000}]',
                  'generator.faults=[{at = "receive", kind = "late", seconds = 500}]',
                  'environment.faults=[{at = "open", kind = "late", seconds = 50, share = 0.5}]')
    assert outcome.status is Status.COMPLETED, outcome.error
    assert outcome.summary["weights_sha256"] == weights


STALLS = [
    ('trainer.faults=[{at = "start", kind = "hang"}]', Phase.STARTUP, "learner.py", ()),
    ('trainer.faults=[{at = "update", kind = "hang"}]', Phase.UPDATE, "learner.py", ("step 1",)),
    ('generator.faults=[{at = "receive", kind = "hang", step = 1}]', Phase.REFIT, "sampler.py", ("step 1",)),
    ('generator.faults=[{at = "generate", kind = "hang"}]', Phase.ROLLOUT, "sampler.py",
     ("waiting for 12 rollouts", "(task mock-train-0000) at agent for 120 s")),
    ('environment.faults=[{at = "score", kind = "hang"}]', Phase.ROLLOUT, "world.py", ("at score for",)),
    ('agent.faults=[{at = "run", kind = "hang"}]', Phase.ROLLOUT, "solver.py", ("at agent for",)),
]


@pytest.mark.parametrize(("fault", "phase", "stack", "says"), STALLS)
def test_a_hang_is_reported_with_who_waits_for_what_and_where(tmp_path, fault, phase, stack, says):
    outcome = run(tmp_path, fault, "limits.score_s=1000")
    assert outcome.status is Status.FAILED
    stalls = of(read_events(outcome.folder), Kind.STALL)
    first = stalls[0].data
    assert first["waiting"]["phase"] == phase
    assert stack in first["stacks"]["engine"]
    for part in (f"nothing has moved for 120 s in phase {phase}", *says, "engine.log"):
        assert part in first["message"]
    assert "\n" not in first["message"]
    entry = next(entry for entry in logged(outcome.folder) if entry["event"] == "stalled")
    assert (entry["message"], entry["stacks"]) == (first["message"], first["stacks"])
    spells = [event.data["seconds"] for event in stalls]
    assert {round(seconds) for seconds in spells} <= {120 * 2**count for count in range(8)}
    assert len(stalls) <= 20
