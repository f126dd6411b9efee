"""Models out of journals of runs that never took place, figure by figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from grpo_bench.contract import Phase, RunFolderError
from grpo_bench_sim.calibrate import calibrated_on
from grpo_bench_sim.laws import Linear
from grpo_bench_sim.model import Model, Quantity, Rollouts, read_model

from .story import BATCH, Story


@pytest.fixture
def model_of(tmp_path: Path) -> Callable[[Story], Model]:
    return lambda story: calibrated_on(story.write(tmp_path / "run"))


def values(law: Any) -> tuple[float, ...]:
    return law.values


def seconds(laws: Sequence[Rollouts]) -> list[tuple[float, ...]]:
    return [values(law.seconds) for law in laws]


def test_every_time_of_a_run_is_in_its_model(model_of):
    story = Story().begin(start=10.0, refit=1.25).validate(None, (5.0, 6.0))
    story.step(1, (1.0, 2.0, 3.0, 4.0), update=8.0, log_probabilities=2.5, refit=0.75).save(1, seconds=7.0)
    story.step(2, (2.0, 3.0, 4.0, 6.0)).validate(2, (7.0, 9.0), met=True).save(2, seconds=8.0)
    story.step(3, (2.0, 2.0, 2.0, 2.0)).save(3, "weights", 1.5).end(shutdown=3.0)
    model = model_of(story)
    assert seconds(model.train) == [(1, 2, 3, 4), (2, 3, 4, 6), (2, 2, 2, 2)]
    assert seconds(model.validation) == [(5, 6), (5, 6), (7, 9)]
    assert (values(model.start), values(model.shutdown)) == ((10,), (3,))
    assert (model.update, model.log_probabilities) == (Linear(fixed=5), Linear(fixed=2))
    assert model.driver.fixed == pytest.approx(0.1 + 0.2 + 0.3)
    assert values(model.refit) == (0.5, 0.5, 0.75)
    assert values(model.checkpoint) == (7, 8) and values(model.checkpoint_weights) == (1.5,)
    assert (model.first.update, model.first.log_probabilities) == (3, 0.5)
    assert model.first.rollout == pytest.approx(1.25 - fmean([0.5, 0.5, 0.75]))
    assert model.passes_after == {str(BATCH): 2 * BATCH} and model.rows == (BATCH, BATCH)
    assert (model.date, model.name) == ("2030-01-02", "run") and "told" in model.source
    assert model.assumed.keys() == {"assumptions.load_requests", "stalls.order"}


def test_a_model_can_be_written_and_read_again(model_of, tmp_path):
    model = model_of(Story().begin().step(1).end())
    (tmp_path / "model.json").write_text(model.model_dump_json())
    assert read_model(tmp_path / "model.json") == model


def test_a_quantity_needs_the_settings_that_it_depends_on_and_the_model_has_those(model_of):
    model = model_of(Story().begin().step(1))
    assert model.needs.keys() == set(Quantity) and all(model.needs.values())
    assert all(key in model.like for keys in model.needs.values() for key in keys)
    assert "limits.concurrency" in model.needs[Quantity.ROLLOUT] and "validation.k" in model.needs[Quantity.VALIDATION]
    assert not {"grpo.max_steps", "validation.target"} & {key for keys in model.needs.values() for key in keys}
    assert (model.like["grpo.prompts_per_step"], model.like["policy.checkpoint"]) == (2, "policy")


def test_a_rollout_is_all_attempts_at_it_without_their_time_in_queues(model_of):
    story = Story().begin()
    story.phase(Phase.ROLLOUT, 1, 94.5)
    story.rollout(1, "t0.0", generate=1.0, environment=2.0, queue=50.0, tokens=3, end="failed")
    story.rollout(1, "t0.0r1", generate=0.5, environment=4.0, queue=20.0, tokens=4, turns=1, end="failed", attempt=1)
    story.rollout(1, "t0.0r2", generate=6.0, score=1.0, queue=10.0, tokens=30, turns=9, attempt=2)
    story.rollout(1, "t0.1", generate=5.5, tokens=20, turns=3)
    story.rollout(1, "t1e1.0", group=1, generate=1.0, tokens=10, turns=3)
    story.work(1)
    (law,) = model_of(story).train
    assert values(law.seconds) == (1, 5.5, 14.5) and values(law.tokens) == (10, 20, 30)
    assert law.turns == 5
    assert (law.shares.generate, law.shares.environment, law.shares.score) == pytest.approx((14 / 21, 6 / 21, 1 / 21))


def test_rollouts_that_took_no_time_are_no_division_by_it(model_of):
    (law,) = model_of(Story().begin().step(1, (0.0, 0.0, 0.0, 0.0))).train
    assert values(law.seconds) == (0, 0, 0, 0) and law.shares.generate == 1


def test_updates_grow_with_tokens_where_the_steps_show_it(model_of):
    story = Story().begin().step(1, tokens=999, update=20.0)
    for step, tokens in enumerate([100, 300, 200, 500], 2):
        story.step(step, tokens=tokens, update=2 + tokens / 100, log_probabilities=tokens / 50)
    model = model_of(story)
    assert (model.update.fixed, model.update.per_token) == pytest.approx((2, 0.01))
    assert (model.log_probabilities.fixed, model.log_probabilities.per_token) == pytest.approx((0, 0.02), abs=1e-9)
    assert model.first.update == pytest.approx(20 - 2 - 9.99) and model.first.log_probabilities == 0


@pytest.mark.parametrize(("schedule", "way"), [({}, 2.5), ({"prompts_in_flight": 1}, 0.0),
                                               ({"mode": "async", "max_age": 1}, 0.0)])
def test_each_rollout_is_on_its_way_as_long_as_the_last_one_where_all_are_asked_for_at_once(model_of, schedule, way):
    story = Story(schedule=schedule).begin()
    story.phase(Phase.ROLLOUT, 1, 12.5)
    story.rollout(1, "t0.0", generate=1.0)
    story.rollout(1, "t0.1", generate=4.0, queue=6.0)
    story.work(1)
    (law,) = model_of(story).train
    assert values(law.seconds) == (1 + way, 4 + way)
    assert law.shares.environment == pytest.approx(2 * way / (5 + 2 * way))


@pytest.mark.parametrize(("in_flight", "worked"), [("keep", (2, 15 - 10, 15 - 8)), ("drain", (2, 15, 15))])
def test_the_time_that_engines_stood_still_is_no_work(model_of, in_flight, worked):
    story = Story(schedule={"mode": "async", "max_age": 1, "in_flight": in_flight}).begin()
    story.phase(Phase.ROLLOUT, 1, 4.0)
    story.rollout(1, "t0.0", generate=4.0)
    story.work(1, refit=10.0, drain=0.0, journal=0.0, advantages=0.0, update=1.0, log_probabilities=1.0)
    story.phase(Phase.ROLLOUT, 2, 2.0)
    story.rollout(2, "t2.0", generate=15.0)
    story.rollout(2, "t2.1", generate=12.0, environment=3.0)
    story.rollout(2, "t3.0", group=3, generate=2.0)
    story.work(2)
    assert seconds(model_of(story).train) == [(4,), worked]


def test_a_drain_of_rollouts_in_flight_is_not_the_drivers(model_of, tmp_path):
    def driver(**schedule: Any) -> float:
        story = Story(schedule=schedule).begin().step(1, drain=100.0).step(2, drain=100.0).validate(2, drain=1000.0)
        return calibrated_on(story.write(tmp_path / str(schedule))).driver.fixed

    assert driver(mode="async", max_age=1, in_flight="drain") == pytest.approx(0.1 + 0.3)
    assert driver(mode="async", max_age=1, in_flight="keep") == pytest.approx(0.1 + 100 + 0.3)
    assert driver(mode="sync", max_age=0, in_flight="drain") == pytest.approx(0.1 + 100 + 0.3)


def test_what_a_cut_off_step_began_does_not_count(model_of):
    story = Story().begin().step(1).step(2, (3.0, 3.0, 3.0, 3.0))
    story.rollouts(3, (0.1, 0.1))
    story.phase(Phase.LOG_PROBABILITIES, 3, 1000.0)
    model = model_of(story)
    assert seconds(model.train) == [(1, 2, 3, 4), (3, 3, 3, 3)]
    assert model.log_probabilities == Linear(fixed=2)
    assert model.passes_after == {str(BATCH): 2 * BATCH} and "passes_after" in model.assumed


def test_a_run_that_is_cut_off_right_after_its_step_has_that_step(model_of):
    story = Story().begin().step(1)
    assert model_of(story).driver.fixed == pytest.approx(0.1 + 0.2)


def test_a_resumed_run_counts_what_was_done_again_as_it_was_done_last(model_of):
    story = Story().begin(start=10.0).step(1, update=9.0).save(1).step(2, (50.0,) * 4, update=50.0)
    story.rollouts(3, (0.1, 0.1))
    story.resume(1, start=20.0, refit=33.0).step(2, (5.0, 5.0, 5.0, 5.0), update=11.0).step(3, update=6.0)
    model = model_of(story)
    assert seconds(model.train) == [(1, 2, 3, 4), (5, 5, 5, 5), (1, 2, 3, 4)]
    assert values(model.start) == (10,)
    assert model.update == Linear(fixed=6) and model.first.update == 3
    assert model.first.rollout == pytest.approx(0.5)


def test_an_attempt_at_a_rollout_of_another_process_is_not_counted_in(model_of):
    story = Story().begin().step(1)
    story.phase(Phase.ROLLOUT, 2, 9.0)
    story.rollout(2, "t2.0", generate=9.0, end="failed")
    story.resume(1)
    story.phase(Phase.ROLLOUT, 2, 2.0)
    story.rollout(2, "t2.0", generate=2.0)
    story.work(2)
    assert seconds(model_of(story).train)[1] == (2,)


def test_without_a_validation_its_rollouts_are_taken_to_be_those_of_the_last_step(model_of):
    model = model_of(Story().begin().step(1).step(2, (9.0, 9.0, 9.0, 9.0)))
    assert seconds(model.validation) == [(9, 9, 9, 9)] and "validation" in model.assumed


def test_a_validation_that_was_cut_off_does_not_count(model_of):
    story = Story().begin().step(1)
    story.phase(Phase.VALIDATION, 1, 5.0)
    story.rollout(1, "v1.0.0", purpose="validation")
    assert "validation" in model_of(story).assumed


def test_an_evaluation_beside_the_run_says_what_its_validations_take(tmp_path):
    story = Story(deferred=True).begin().step(1).save(1, "weights", 2.0).step(2).save(2, "weights", 4.0).end("trained")
    folder = story.write(tmp_path)
    before = calibrated_on(folder)
    assert "validation" in before.assumed and before.passes_after == {str(BATCH): 2 * BATCH}
    story.evaluate(folder)
    story.refit(1, 1, 500.0)
    story.validate(1, (3.0, 4.0), met=True).end("target_met")
    model = calibrated_on(story.write(tmp_path))
    assert seconds(model.validation) == [(3, 4), (3, 4)] and "validation" not in model.assumed
    assert model.passes_after == {str(BATCH): BATCH} and "passes_after" not in model.assumed
    assert (values(model.start), values(model.refit), values(model.shutdown)) == ((10,), (0.5, 0.5), (3,))
    assert model.checkpoint is None and values(model.checkpoint_weights) == (2, 4)
    full_s = model.assumptions.full_bytes / model.assumptions.bytes_per_s
    assert full_s == pytest.approx(3 * 3)


def test_the_process_of_a_runs_own_evaluation_is_kept(tmp_path):
    story = Story(deferred=True).begin().step(1).save(1, "weights").step(2).save(2, "weights").end("trained")
    story.write(tmp_path)
    assert calibrated_on(tmp_path).evaluation is None
    story.evaluate(tmp_path)
    story.refit(1, 1, 500.0)
    story.validate(1, (3.0, 4.0), drain=2.0)
    story.refit(2, 2, 400.0)
    story.validate(2, (3.0, 4.0), met=True).end("target_met", shutdown=30.0)
    found = calibrated_on(story.write(tmp_path)).evaluation
    assert found is not None
    assert (values(found.start), values(found.reading), values(found.shutdown)) == ((1000,), (400, 502), (30,))


@pytest.mark.parametrize("reads", [False, True])
def test_an_evaluation_that_came_to_no_validation_says_nothing_of_its_process(tmp_path, reads):
    story = Story(deferred=True).begin().step(1).save(1, "weights").end("trained")
    story.write(tmp_path)
    story.evaluate(tmp_path)
    if reads:
        story.refit(1, 1, 500.0)
    assert calibrated_on(story.end("failed").write(tmp_path)).evaluation is None


def test_of_a_resumed_evaluation_the_first_start_is_kept_and_all_readings(tmp_path):
    story = Story(deferred=True).begin().step(1).save(1, "weights").step(2).save(2, "weights").end("trained")
    story.write(tmp_path)
    story.evaluate(tmp_path)
    story.refit(1, 1, 500.0)
    story.validate(1, (3.0, 4.0)).resume(1, start=77.0, refit=400.0)
    found = calibrated_on(story.validate(2, (3.0, 4.0)).end("target_missed").write(tmp_path)).evaluation
    assert found is not None and (values(found.start), values(found.reading)) == ((1000,), (400, 500))


def test_a_long_run_of_large_steps_makes_a_model_of_bounded_size(model_of, monkeypatch):
    monkeypatch.setattr("grpo_bench_sim.calibrate._VALUES", 1000)
    story = Story().begin()
    for step in range(1, 11):
        story.step(step, [float(number % 97) for number in range(300)])
    model = model_of(story)
    assert 500 < sum(len(law) for law in seconds(model.train)) <= 1000
    assert all((law[0], law[-1]) == (0, 96) for law in seconds(model.train))


def damaged(folder: Path) -> None:
    file = Story().begin().step(1).write(folder) / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:4], "no event\n", *lines[5:]]))


def of_another_training(folder: Path) -> None:
    story = Story(deferred=True).begin().step(1).save(1, "weights").end("trained")
    story.write(folder)
    story.evaluate(folder).validate(1).write(folder)
    file = folder / "events.jsonl"
    file.write_text(file.read_text().replace('"seed":0', '"seed":1'))


@pytest.mark.parametrize(("make", "says"), [
    (lambda folder: Story(modelled="a model: of something").begin().step(1).write(folder), "is a simulation"),
    (lambda folder: Story(settings={}).begin().step(1).write(folder), "does not say what the run is made of"),
    (lambda folder: Story(prompts_per_step=0).begin().step(1).write(folder), "does not say what the run is made of"),
    (lambda folder: Story().begin().write(folder), "no step that is over"),
    (lambda folder: Story().write(folder), "no step that is over"),
    (lambda folder: folder.mkdir(), "cannot read"), (lambda folder: None, "cannot read|is no"),
    (damaged, "line 5"), (of_another_training, "another training"),
], ids=["simulation", "old", "no prompts", "no step", "no start", "empty", "nothing", "damaged",
        "of another"])
def test_what_no_model_can_be_made_of_is_refused_with_one_error(tmp_path, make, says):
    make(tmp_path / "run")
    with pytest.raises(RunFolderError, match=says):
        calibrated_on(tmp_path / "run")
