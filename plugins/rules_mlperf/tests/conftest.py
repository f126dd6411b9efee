"""Runs as events, made without an engine: each second of them is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind, Phase, Status

START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SETUP_S, STEP_S, VALIDATION_S = 60.0, 10.0, 5.0
OPTIMIZER = {
    "opt_name": "adamw", "opt_base_learning_rate": 1e-6, "opt_end_learning_rate": 1e-6, "opt_adamw_beta_1": 0.9,
    "opt_adamw_beta_2": 0.999, "opt_adamw_epsilon": 1e-8, "opt_adamw_weight_decay": 0.0,
    "opt_gradient_clip_norm": 0.125, "opt_learning_rate_warmup_steps": 0,
    "opt_learning_rate_decay_schedule": "constant",
}
FACTS = {
    **OPTIMIZER, "micro_batch_size": 1, "tensor_parallelism": 4, "pipeline_parallelism": 2, "context_parallelism": 1,
    "expert_parallelism": 32, "lowest_numerical_precision_in_linear": "bfloat16",
    "lowest_numerical_precision_in_attn": "bfloat16", "lowest_numerical_precision_in_comm": "bfloat16",
}


class Recording:
    """A journal in the making: a benchmark run at batch 256 unless ``changes`` to the first event say otherwise."""

    def __init__(self, *, facts: dict[str, Any] | None = None, observers: Sequence[dict[str, Any]] = (),
                 ruleset: str | None = "mlperf-training-6.1", settings: dict[str, Any] | None = None,
                 **changes: Any) -> None:
        self.events: list[Event] = []
        self.now = START
        self.process = START
        self.rate = 1e-6
        sampling = {"temperature": 1.0, "top_p": 1.0}
        resolved = {
            "policy": {"checkpoint": "models/policy", "max_context": 65_536}, "sampling": sampling,
            "grpo": {"split": "train"}, "validation": {"split": "held-out", "max_tasks": None,
                                                       "sampling": {"temperature": 0.1, "top_p": 0.95}},
            "ruleset": {"use": ruleset} if ruleset else None, "observers": [{"use": "mllog"}, *observers],
            **(settings or {})}
        part = {"name": "real", "stand_in": False, "facts": {}}
        self.started = {
            "run": "r", "profile": "bench", "seed": 7, "target": 0.69, "metric": "pass_k", "max_steps": 30,
            "prompts_per_step": 16, "generations_per_prompt": 16, "scored": True, "unscored": [],
            "settings": resolved, "parts": {"trainer": {**part, "facts": FACTS if facts is None else facts},
                                            "generator": part},
            "placements": {"trainer": {"workers": 64}},
            "tasks": {"train": {"available": 700, "count": 480}, "held-out": {"available": 251, "count": 251}},
            **changes}
        self.wait(1.5)
        self.add(Kind.RUN_STARTED, elapsed=0.0, **self.started)
        self.phase(Phase.STARTUP, elapsed=0.0)
        self.wait(SETUP_S)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def add(self, kind: Kind, step: int | None = None, *, elapsed: float | None = None, **data: Any) -> None:
        passed = (self.now - self.process).total_seconds() if elapsed is None else elapsed
        at = self.now.isoformat(timespec="microseconds")
        self.events.append(Event(len(self.events), at, passed, kind.value, step, data))

    def phase(self, phase: Phase, step: int | None = None, *, elapsed: float | None = None) -> None:
        self.add(Kind.PHASE, step, elapsed=elapsed, phase=phase.value)

    def step(self, step: int) -> None:
        self.phase(Phase.ROLLOUT, step)
        self.wait(STEP_S - 2)
        self.add(Kind.ROLLOUT, step, group_id=step, rollout_id=f"t{step}.0")
        self.add(Kind.BATCH, step, n_tokens=1000.0 + step, n_sequences=256.0)
        self.phase(Phase.UPDATE, step)
        self.wait(1)
        self.add(Kind.UPDATE, step, loss=-0.5, grad_norm=0.25, learning_rate=self.rate)
        self.wait(1)
        self.phase(Phase.JOURNAL, step)
        self.add(Kind.STEP, step, seconds=STEP_S, reward_mean=0.375)

    def checkpoint(self, step: int) -> None:
        self.phase(Phase.CHECKPOINT, step)
        self.add(Kind.CHECKPOINT, step, folder=f"step-{step:05d}", what="full")

    def validate(self, step: int | None, passed: int, tasks: int = 251, *, target: int = 174, **data: Any) -> None:
        self.phase(Phase.VALIDATION, step)
        self.wait(VALIDATION_S)
        values = {"k": 4, "tasks": tasks, "passed": passed, "metrics": {"pass_k": passed / tasks, "accuracy": 0.5},
                  "ends": {"completed": 4 * tasks}, "target_met": passed >= target}
        self.add(Kind.VALIDATION, step, **{**values, **data})

    def end(self, status: Status = Status.TARGET_MET) -> None:
        self.phase(Phase.SHUTDOWN)
        self.wait(2)
        self.add(Kind.RUN_ENDED, status=status.value)

    def resume(self, attempt: int = 2, gone_s: float = 100.0) -> int:
        """Another process goes on from the latest checkpoint, or from the start where there is none: after which
        step."""
        self.wait(gone_s)
        self.process = self.now
        step, seq = max(((event.step or 0, event.seq + 1) for event in self.events if event.kind == Kind.CHECKPOINT),
                        default=(0, 1))
        self.add(Kind.RESUMED, elapsed=0.0, from_step=step, from_seq=seq, attempt=attempt, forced=[])
        self.phase(Phase.STARTUP, elapsed=0.0)
        self.wait(SETUP_S)
        self.phase(Phase.REFIT)
        return step


def benchmark(passed: Sequence[int] = (160, 180), status: Status = Status.TARGET_MET, **changes: Any) -> Recording:
    """A run whose validations, from step 18 on, solved ``passed`` tasks."""
    run = Recording(**changes)
    run.phase(Phase.REFIT)
    for step in range(1, 18 + len(passed)):
        run.step(step)
        if step >= 18:
            run.validate(step, passed[step - 18])
    run.end(status)
    return run


def laptop(**changes: Any) -> Recording:
    """A run of something else: small, validated before it starts and every second step, stopped by its last step."""
    facts = {**FACTS, "opt_base_learning_rate": 2e-3, "opt_end_learning_rate": 2e-3, "opt_gradient_clip_norm": 1.0,
             "opt_learning_rate_warmup_steps": 3, "tensor_parallelism": 1, "pipeline_parallelism": 1,
             "expert_parallelism": 1}
    sampling = {"temperature": 1.0, "top_p": 1.0}
    run = Recording(
        facts=facts, ruleset=None, prompts_per_step=4, generations_per_prompt=8, max_steps=5, profile="laptop",
        placements={"trainer": {"workers": 2}},
        tasks={"train": {"available": 2048, "count": 20}, "held-out": {"available": 320, "count": 128}},
        settings={"policy": {"checkpoint": "package:tiny/base", "max_context": 512},
                  "validation": {"split": "held-out", "max_tasks": 128, "sampling": None}, "sampling": sampling},
        **changes)
    run.rate = 2e-3
    run.phase(Phase.REFIT)
    run.validate(None, 10, 128, target=89)
    for step in range(1, 6):
        run.step(step)
        if step % 2 == 0:
            run.validate(step, 20 * step, 128, target=89)
    run.end(Status.TARGET_MISSED)
    return run


Make = Callable[..., Recording]


@pytest.fixture(scope="session")
def make_benchmark() -> Make:
    return benchmark


@pytest.fixture(scope="session")
def make_laptop() -> Make:
    return laptop


@pytest.fixture(scope="session")
def make_recording() -> Make:
    return Recording
