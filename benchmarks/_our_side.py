"""Our side of the comparison: the engine with all its parts, held at the end of every step by an observer."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Kind, Plugin, Role, Settings, hookimpl
from grpo_bench.engine import execute
from grpo_bench.registry import Part, make_plan, resolve

from ._job import GENERATIONS, LEARNING_RATE, MAX_CONTEXT, MAX_TOKENS, MAX_TURNS, PROFILE, PROMPTS, Turnstile

_NEVER = 10**6


class _Holder:
    """Lets a step begin when it may, and reports it."""

    def __init__(self) -> None:
        self._turnstile = Turnstile()
        self._turns = self._trained = 0

    @hookimpl
    def event(self, event: Event) -> None:
        if event.kind == Kind.REFIT and event.data["version"] == 0:
            self._turnstile.ready()
            self._turnstile.go()
        elif event.kind == Kind.ROLLOUT:
            self._turns += event.data["turns"]
        elif event.kind == Kind.BATCH:
            self._trained = event.data["rollouts"]
        elif event.kind == Kind.STEP:
            self._turnstile.over(turns=self._turns, trained=self._trained, reward=event.data["reward_mean"])
            self._turns = 0
            self._turnstile.go()


def make_holder(_context: Any) -> _Holder:
    """The descriptor's factory."""
    return _Holder()


def main(steps: int) -> int:
    resolved = resolve(PROFILE, overrides=[
        f"grpo.prompts_per_step={PROMPTS}", f"grpo.generations_per_prompt={GENERATIONS}", f"grpo.max_steps={steps}",
        f"sampling.max_tokens={MAX_TOKENS}", f"policy.max_context={MAX_CONTEXT}", f"agent.max_turns={MAX_TURNS}",
        f"trainer.learning_rate={LEARNING_RATE}", "trainer.warmup_steps=0", "validation.at_start=false",
        f"validation.period={steps}", "validation.max_tasks=1", "validation.target=1.0",
        f"limits.stall_report_s={_NEVER}"])
    plan = make_plan(resolved, seed=0)
    holder = Plugin(name="holder", role=Role.OBSERVER, summary="holds the engine between steps", config=Settings,
                    factory="benchmarks._our_side:make_holder")
    plan = replace(plan, observers=(*plan.observers, Part(Role.OBSERVER, holder, Settings(), "benchmarks", "0", {})))
    with tempfile.TemporaryDirectory() as runs:
        return execute(plan, Path(runs), progress=False, json_output=False)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
