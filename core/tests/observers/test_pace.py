"""How fast a run was, by its journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Phase, RunFolderError, Status
from grpo_bench.observers import pace_of


def test_steps_are_apart_from_what_not_every_step_has(tmp_path: Path, history: Any) -> None:
    history.start()
    history.now = 7.0
    history.one_step(1, 1)
    history.checkpoint()
    history.train(2)
    history.phase(Phase.REFIT, after=1.0)
    history.train(3)
    history.end(Status.TARGET_MISSED)
    pace = pace_of(history.save(tmp_path))
    assert pace.start_s == (7.0, 7.0)
    assert pace.first_step_s == pytest.approx((3.4, 3.4))
    assert pace.step_s == pytest.approx((3.4 + 0.25, 3.4 + 0.75))
    assert (pace.validation_s, pace.checkpoint_s, pace.wall_s) == ((1.0, 1.0), (0.5, 0.5), 0.0)
    assert pace.source == f"run {tmp_path.name} of profile laptop, 3 steps"


def test_steps_that_a_resumption_made_undone_do_not_count(tmp_path: Path, resumed: Any) -> None:
    pace = pace_of(resumed.save(tmp_path))
    assert pace.step_s == pytest.approx((3.4, 3.4), abs=0.01)
    assert pace.start_s == (1.0, 1.0)


def test_a_deferred_evaluation_is_part_of_it(tmp_path: Path, history: Any) -> None:
    history.start()
    history.train(1)
    history.keep_weights()
    history.end(Status.TRAINED)
    history.evaluation()
    history.evaluate(1, 4)
    history.end(Status.TARGET_MET)
    pace = pace_of(history.save(tmp_path))
    assert (pace.checkpoint_s, pace.validation_s, pace.start_s) == ((0.3, 0.3), (1.0, 1.0), (0.0, 0.5))
    assert pace.first_step_s == pace.step_s == pytest.approx((3.4, 3.4))


def test_what_it_did_not_do_is_said(tmp_path: Path, history: Any) -> None:
    history.start()
    history.train(1)
    history.end(Status.COMPLETED)
    assert pace_of(history.save(tmp_path)).source.endswith(
        "1 steps; it had no checkpoint and no validation, which count as nothing")


def test_a_run_without_a_whole_step_has_none(tmp_path: Path, history: Any) -> None:
    history.start()
    history.end(Status.FAILED)
    with pytest.raises(RunFolderError, match="has no step that is over"):
        pace_of(history.save(tmp_path))
