"""The ruleset: holds a profile, and a run that is over, against one version of the rules.

Before a run every requirement is held against the profile, against what the parts say of themselves and against the
checkpoint's config (:mod:`.holding`). During it the schedule of validations and the target are the rules'. After it
what counts is what the events say was done (:mod:`.after`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Finding, PluginContext, ValidationReport

from ._plugins import observer
from .after import judged
from .convergence import expectation
from .holding import findings
from .policy import model_of
from .rules import Division, Rules
from .training_6_1 import RULES


class MLPerfRuleset:
    """The contract's Ruleset. ``batch`` is rollouts per step, ``model`` the policy's table, None where its checkpoint
    is not here."""

    def __init__(self, rules: Rules, batch: int, division: Division = Division.CLOSED,
                 model: Mapping[str, Any] | None = None) -> None:
        self._rules = rules
        self._batch = batch
        self._division = division
        self._model = model

    def check(self, profile: Any) -> Sequence[Finding]:
        known = {**profile, **({} if self._model is None else {"model": self._model})}
        batch = profile["grpo"]["prompts_per_step"] * profile["grpo"]["generations_per_prompt"]
        found = findings(self._rules, batch, self._division, known)
        closed = self._division is Division.CLOSED
        return (*found, _logged(profile), *([expectation(self._rules, batch)] if closed else []))

    def should_validate(self, step: int, max_steps: int) -> bool:
        return step >= self._rules.first_validation(self._batch)

    def met(self, report: ValidationReport) -> bool:
        return report.k == self._rules.k and report.passed >= self._rules.needed(report.tasks)

    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        return tuple(judged(self._rules, self._division, events))


def _logged(profile: Any) -> Finding:
    used = [section["use"] for section in profile.get("observers", ())]
    ok = observer.name in used
    return Finding("observers", ok, ", ".join(used) or "none", "observers", "a result is submitted as its MLLOG",
                   "" if ok else f'add {{ use = "{observer.name}" }} to observers')


def create(context: PluginContext) -> MLPerfRuleset:
    """The factory. Where only questions about finished runs are asked there is no profile: the reference's batch."""
    grpo = context.shared.get("grpo")
    batch = grpo.prompts_per_step * grpo.generations_per_prompt if grpo is not None else RULES.reference_batch
    return MLPerfRuleset(RULES, batch, Division(context.config.division), model_of(context.policy.checkpoint))
