"""What a ruleset owes: findings on any profile, and decisions that hold together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ..contract import Finding, GrpoSettings, Pace, Role, Ruleset, ValidationReport, load_object
from . import history
from .suite import Rig, Suite, demand
from .world import World

K = 4
TASKS = 50
STEPS = (1, 2, 7, 40)
"""Lengths of runs that schedules are asked about."""


@dataclass
class RulesetRig(Rig):
    """``ruleset`` as a plan makes it, and a profile as JSON data, as a plan hands it over."""

    ruleset: Ruleset

    def profile(self, **grpo: Any) -> dict[str, Any]:
        made = history.profile()
        return {**made, "grpo": {**made["grpo"], **grpo}, "facts": {role.value: {} for role in Role},
                "ruleset": {"use": self.descriptor.name, **self.config.model_dump(mode="json")}}


def _shared() -> dict[str, Any]:
    return {"grpo": GrpoSettings(prompts_per_step=4, generations_per_prompt=4, max_steps=10)}


def report(passed: int, step: int = 20) -> ValidationReport:
    """A validation in which ``passed`` of the tasks were solved, by each of their rollouts."""
    share = passed / TASKS
    metrics = {"accuracy": share, "pass_k": share, "pass_hat_k": share, "pass_1": share}
    return ValidationReport(step, step, K, TASKS, passed, metrics, 0.05, 1.0, {"completed": K * TASKS})


class RulesetSuite(Suite):
    """Demands on rulesets."""

    role = Role.RULESET

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[RulesetRig]:
        yield RulesetRig(**vars(rig), ruleset=world.make_to_ask(rig.descriptor, rig.config, _shared()))

    @demand
    async def test_findings_are_json(self, rig: RulesetRig) -> None:
        """A plan keeps them; each names its rule and says what was found, in one line."""
        for finding in rig.ruleset.check(rig.profile()):
            assert isinstance(finding, Finding) and isinstance(finding.ok, bool)
            assert finding.rule and finding.message and "\n" not in finding.message
            assert json.loads(json.dumps(asdict(finding))) == asdict(finding)

    @demand
    async def test_checking_changes_nothing(self, rig: RulesetRig) -> None:
        """The same profile gets the same findings, and stays what it was."""
        profile = rig.profile()
        before = json.dumps(profile)
        assert list(rig.ruleset.check(profile)) == list(rig.ruleset.check(profile))
        assert json.dumps(profile) == before

    @demand
    async def test_unusual_profiles_are_findings(self, rig: RulesetRig) -> None:
        """A profile that breaks every rule is told so; it is no reason to raise."""
        for grpo in ({"max_steps": 1, "prompts_per_step": 1}, {"generations_per_prompt": 1024}):
            assert all(isinstance(finding, Finding) for finding in rig.ruleset.check(rig.profile(**grpo)))

    @demand
    async def test_a_pace_is_least_and_most(self, rig: RulesetRig) -> None:
        """What it knows of how fast a profile's runs are is seconds, least before most, and says where that is from;
        of a profile that it knows nothing of it is None."""
        pace = rig.descriptor.pace
        for grpo in ({}, {"max_steps": 1, "prompts_per_step": 1}):
            if pace is not None and (found := load_object(pace)(rig.profile(**grpo))) is not None:
                assert isinstance(found, Pace) and found.source and found.wall_s >= 0
                assert all(0 <= least <= most for least, most in (
                    found.start_s, found.first_step_s, found.step_s, found.checkpoint_s, found.validation_s))

    @demand
    async def test_the_schedule_answers_for_every_step(self, rig: RulesetRig) -> None:
        """It is asked before the first step (0) and after each, and gives the same plain answer every time."""
        for steps in STEPS:
            answers = [rig.ruleset.should_validate(step, steps) for step in range(steps + 1)]
            assert all(type(answer) is bool for answer in answers)
            assert answers == [rig.ruleset.should_validate(step, steps) for step in range(steps + 1)]

    @demand
    async def test_more_is_never_worse(self, rig: RulesetRig) -> None:
        """Where a target is met, it is met by every better validation; with nothing solved it is not met."""
        answers = [rig.ruleset.met(report(passed)) for passed in range(TASKS + 1)]
        assert all(type(answer) is bool for answer in answers)
        assert answers == sorted(answers)
        assert not answers[0]

    @demand
    async def test_runs_that_are_over_are_judged(self, rig: RulesetRig) -> None:
        """From folder and events alone, whatever became of the run: met, failed, cut off, resumed, never begun, trained
        and evaluated afterwards or not."""
        (first, second), (training, evaluation) = history.resumed_run(), history.deferred_run()
        for events in (history.whole_run(), history.failed_run(), first, [*first, *second], history.whole_run()[:1],
                       training, [*training, *evaluation]):
            for finding in rig.ruleset.check_run(rig.world.new_folder(), events):
                assert isinstance(finding, Finding) and finding.rule and finding.message
                assert json.loads(json.dumps(asdict(finding))) == asdict(finding)
