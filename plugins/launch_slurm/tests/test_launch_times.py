"""Estimates against the wall time, and how early a job is told of its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grpo_bench_launch_slurm.form import Evaluation, stop_seconds, wall_minutes
from grpo_bench_launch_slurm.wall import judged
from hypothesis import given, strategies as st

from grpo_bench.contract import InputError
from grpo_bench.registry.estimate import Duration, Estimate
from grpo_bench.registry.site_tables import Launch

HOUR = 3600.0


def estimate(training: tuple[float, float], evaluation: tuple[float, float] = (0, 0)) -> Estimate:
    """Hours."""
    return Estimate(start=Duration(0, 0), training=Duration(*(HOUR * hours for hours in training)),
                    checkpoints=Duration(0, 0), evaluation=Duration(*(HOUR * hours for hours in evaluation)),
                    wall_s=4 * HOUR, source="somewhere", assumed={})


@pytest.fixture
def scored(plans):
    """A plan that saves no full checkpoint and is evaluated afterwards."""
    return plans("gb300-256-mock")


def said(plan, found: Estimate, minutes: int, evaluation: Evaluation) -> list[str]:
    return list(judged(replace(plan, estimate=found), minutes, evaluation))


def test_what_fits_is_said_and_what_may_not_is_warned_of(scored) -> None:
    fits = said(scored, estimate((1, 2), (1, 2)), 240, Evaluation.SAME)
    assert fits[0] == "time: training and evaluation take 120 to 240 minutes, and a job has 240"
    assert fits[-1] == "time: as of somewhere"
    may_not = said(scored, estimate((1, 3), (1, 2)), 240, Evaluation.SAME)
    assert may_not[0].startswith("WARNING: training and evaluation take 120 to 300 minutes, and a job has 240")
    assert "--eval dependent" in may_not[0] and "--minutes" in may_not[0]
    assert said(scored, estimate((1, 3), (1, 2)), 240, Evaluation.NONE)[0].startswith("time: training takes 60 to 180")


def test_what_cannot_fit_is_refused_with_what_to_change(scored) -> None:
    with pytest.raises(InputError, match=r"take 300 to 420 minutes, and a job has 240: it cannot end") as caught:
        said(scored, estimate((3, 4), (2, 3)), 240, Evaluation.SAME)
    assert "--eval dependent" in caught.value.hint and "--eval none" in caught.value.hint
    assert "--minutes" in caught.value.hint
    with pytest.raises(InputError, match=r"training takes 300 to 420 minutes") as caught:
        said(scored, estimate((5, 7), (2, 3)), 240, Evaluation.DEPENDENT)
    assert "--eval" not in caught.value.hint


def test_what_goes_on_later_takes_several_jobs(plans, scored) -> None:
    lines = said(plans("mock"), estimate((5, 13)), 240, Evaluation.SAME)
    assert lines[0].endswith("it goes on in a later start of the job, 2 to 4 in all")
    lines = said(scored, estimate((1, 2), (5, 6)), 240, Evaluation.DEPENDENT)
    assert lines[1].startswith("time: evaluation takes 300 to 360 minutes") and "2 to 2 in all" in lines[1]


def test_where_nobody_knows_it_is_said(scored) -> None:
    assert list(judged(scored, None, Evaluation.SAME)) == [
        "time: nobody has said how long runs like this take",
        "time: the partition's own limit applies; set launch.minutes or --minutes"]


def test_the_command_line_goes_before_the_site_and_that_before_the_reference(scored) -> None:
    known = replace(scored, estimate=estimate((1, 2)))
    assert wall_minutes(known, Launch(minutes=30), 10) == 10
    assert wall_minutes(known, Launch(minutes=30), None) == 30
    assert wall_minutes(known, Launch(), None) == 240
    assert wall_minutes(scored, Launch(), None) is None


def test_a_job_is_told_early_enough_for_a_step_and_its_checkpoint(plans, scored) -> None:
    known = replace(plans("mock"), estimate=estimate((5, 10)))
    assert known.profile.grpo.max_steps == 50
    assert stop_seconds(known, Launch(), 240, False) == 120 + 2 * 36_000 / 50
    validated = replace(known, estimate=estimate((5, 10), (1, 2)))
    assert (validated.profile.validation.period, validated.profile.validation.deferred) == (5, False)
    assert stop_seconds(validated, Launch(), 240, False) == 120 + 2 * 36_000 / 50 + 7_200 / 10
    assert stop_seconds(known, Launch(stop_s=77), 240, False) == 77
    assert stop_seconds(known, Launch(stop_s=7_200), 60, False) == 1_800  # one told as it begins would never get on
    assert stop_seconds(scored, Launch(), 240, False) == stop_seconds(known, Launch(), 240, True) == 120
    assert stop_seconds(plans("mock"), Launch(), 240, False) == 900


@given(minutes=st.integers(1, 43_200), hours=st.floats(0, 1e6))
def test_and_never_before_half_of_its_time(plans, minutes: int, hours: float) -> None:
    known = replace(plans("mock"), estimate=estimate((0, hours)))
    assert 1 <= stop_seconds(known, Launch(), minutes, False) <= min(minutes * 30, 65_535)
