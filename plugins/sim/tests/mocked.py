"""Runs of profile mock in virtual time, whose parts take known times."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_bench.engine import conduct, make_folder, run_virtual
from grpo_bench.registry import make_plan, resolve

SHAPE = ("grpo.max_steps=6", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=6", "validation.period=3",
         "validation.metric=off", "validation.target=off", "checkpoint.period=3")
ASYNC = ("schedule.mode=async", "schedule.max_age=1", "deterministic=false")
_TIMES = ("trainer.update_s=300", "trainer.log_probabilities_s=60", "trainer.save_s=100", "generator.start_s=100",
          "generator.token_s=5", "generator.receive_s=45", "environment.open_s=10", "environment.exec_s=20",
          "environment.score_s=15", "limits.request_s=3000", "limits.rollout_s=20000")


def slow_plan(folder: Path, *overrides: str) -> Any:
    return make_plan(resolve("mock", overrides=(*_TIMES, *overrides), cwd=folder), 0)


def ran(plan: Any, folder: Path) -> Path:
    """The folder of a run that is over."""
    run = make_folder(plan, folder / "runs", datetime.now(UTC))
    outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    assert outcome.error is None
    return run
