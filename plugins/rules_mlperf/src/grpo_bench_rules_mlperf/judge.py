"""The ruleset: holds a profile, and a run that is over, against one version of the rules.

Before a run every value that the rules name is compared, the profile's and what the trainer said of itself. During it
the schedule of validations and the target are the rules'. After it what counts is what the events say was done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_bench.contract import End, Event, Finding, Kind, PluginContext, ValidationReport, canonical

from .rules import Rules
from .training_6_1 import RULES

_TOLERANCE = 1e-9
"""What the official checker allows learning rate and clipping norm to differ."""
_ABSENT = object()


class MLPerfRuleset:
    """The contract's Ruleset. ``batch`` is rollouts per step; ``vocab_size`` that of the profile's policy."""

    def __init__(self, rules: Rules, batch: int, vocab_size: int) -> None:
        self._rules = rules
        self._batch = batch
        self._vocab_size = vocab_size

    def check(self, profile: Any) -> Sequence[Finding]:
        facts = profile.get("facts", {}).get("trainer", {})
        return (*_equal(profile, self._rules.profile), *_equal(facts, self._rules.facts, "trainer."),
                *self._by_batch(profile, facts), self._policy())

    def should_validate(self, step: int, max_steps: int) -> bool:
        return step >= self._rules.first_validation(self._batch)

    def met(self, report: ValidationReport) -> bool:
        return report.k == self._rules.k and report.passed >= self._rules.needed(report.tasks)

    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        history, started = canonical(events), events[0].data
        batch = started["prompts_per_step"] * started["generations_per_prompt"]
        validations = [event for event in history if event.kind == Kind.VALIDATION]
        updates = [event for event in history if event.kind == Kind.UPDATE]
        return (self._schedule(validations, batch), *self._validations(validations), self._stop(validations),
                self._learning_rates(updates, batch), Finding(
                    "deferred evaluation", False, "validations ran during training; the rules want weights saved after "
                                                  "each step, and evaluated afterwards"))

    def _by_batch(self, profile: Any, facts: Mapping[str, Any]) -> Iterator[Finding]:
        rules, grpo = self._rules, profile["grpo"]
        batch = grpo["prompts_per_step"] * grpo["generations_per_prompt"]
        yield _compared("validation.start_at", profile["validation"]["start_at"], rules.first_validation(batch))
        if batch in rules.max_steps:
            yield _compared("grpo.max_steps", grpo["max_steps"], rules.max_steps[batch])
        for key, wanted in (("opt_base_learning_rate", rules.learning_rate(batch)),
                            ("opt_end_learning_rate", rules.learning_rate(batch)),
                            ("opt_gradient_clip_norm", rules.clip_norm(batch))):
            yield _compared(f"trainer.{key}", facts.get(key, _ABSENT), wanted)
        tasks = profile["validation"]["max_tasks"]
        if tasks is not None:
            yield _compared("validation.max_tasks", tasks, rules.validation_tasks)

    def _policy(self) -> Finding:
        if self._vocab_size == self._rules.vocab_size:
            return Finding("policy", True, f"a vocabulary of {self._vocab_size:,} tokens")
        return Finding("policy", False, f"has a vocabulary of {self._vocab_size:,} tokens; the benchmark's policy, "
                                        f"Qwen3.5-397B-A17B, has {self._rules.vocab_size:,}")

    def _schedule(self, validations: Sequence[Event], batch: int) -> Finding:
        first = self._rules.first_validation(batch)
        steps = [event.step or 0 for event in validations]
        ok = bool(steps) and steps == list(range(first, first + len(steps)))
        return Finding("validation schedule", ok, f"after steps {_listed(steps)}" + (
            "" if ok else f"; the rules want every step from {first} on"))

    def _validations(self, validations: Sequence[Event]) -> Iterator[Finding]:
        tasks, k = self._rules.validation_tasks, self._rules.k
        for event in validations:
            data, name = event.data, f"validation after step {event.step or 0}"
            lost = sum(count for end, count in data["ends"].items() if not End(end).is_sample)
            if (data["tasks"], data["k"]) != (tasks, k):
                yield Finding(name, False, f"{data['tasks']} tasks x {data['k']}; the rules want {tasks} x {k}")
            elif lost:
                yield Finding(name, False, f"{lost} of {tasks * k} rollouts did not end normally")

    def _stop(self, validations: Sequence[Event]) -> Finding:
        """Decided on integers, whatever the run thought at the time."""
        met = [event.data["passed"] >= self._rules.needed(event.data["tasks"]) for event in validations]
        ok = True in met and met.index(True) == len(met) - 1
        return Finding("target", ok, "met by the last validation and by none before" if ok else
                       "met by no validation" if True not in met else "validations went on after the one that met it")

    def _learning_rates(self, updates: Sequence[Event], batch: int) -> Finding:
        wanted = self._rules.learning_rate(batch)
        other = sorted({rate for event in updates if not _near(rate := event.data["learning_rate"], wanted)})
        return Finding("learning rate", not other, f"{wanted:.10g} in every update" if not other else
                       f"updates ran at {_listed(other)}; the rules want {wanted:.10g}")


def _equal(values: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[Finding]:
    for key, value in wanted.items():
        yield _compared(prefix + key, _at(values, key), value)


def _at(values: Any, dotted: str) -> Any:
    """A value by its path; what a table that is absent would hold is absent."""
    for name in dotted.split("."):
        values = values.get(name, _ABSENT) if isinstance(values, Mapping) else _ABSENT
    return values


def _compared(rule: str, found: Any, wanted: Any) -> Finding:
    if found is _ABSENT:
        return Finding(rule, False, f"not said; the rules want {_shown(wanted)}")
    ok = _near(found, wanted) if isinstance(wanted, float) else found == wanted and type(found) is type(wanted)
    return Finding(rule, ok, _shown(found) if ok else f"{_shown(found)}; the rules want {_shown(wanted)}")


def _near(found: Any, wanted: float) -> bool:
    return type(found) in (int, float) and math.isclose(found, wanted, rel_tol=0, abs_tol=_TOLERANCE)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else "none" if value is None else str(value)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(_shown, values)) or "none"


def create(context: PluginContext) -> MLPerfRuleset:
    """The factory. Where only questions about finished runs are asked there is no profile: the reference's batch."""
    grpo = context.shared.get("grpo")
    batch = grpo.prompts_per_step * grpo.generations_per_prompt if grpo is not None else RULES.reference_batch
    return MLPerfRuleset(RULES, batch, context.policy.vocab_size)
