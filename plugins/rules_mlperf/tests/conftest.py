"""Runs as events, made without an engine: each second of them is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind, Phase, Status

START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SETUP_S, STEP_S, VALIDATION_S, SAVE_S = 60.0, 10.0, 5.0, 3.0
UNTOLD_S = 0.25
"""From the end of an update to the engine's hearing of it."""
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
        self.base = 0
        """How many events lie before the journal in the making."""
        self.before_s = 0.0
        """How long earlier attempts took."""
        self.reached_s: float | None = None
        self.updated: dict[int, tuple[str, float]] = {}
        """When the update of a step ended, UTC, and in seconds of the run."""
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
        self.events.append(Event(len(self.events) - self.base, at, passed, kind.value, step, data))

    def phase(self, phase: Phase, step: int | None = None, *, elapsed: float | None = None) -> None:
        self.add(Kind.PHASE, step, elapsed=elapsed, phase=phase.value)

    def step(self, step: int) -> None:
        self.phase(Phase.ROLLOUT, step)
        self.wait(STEP_S - 2)
        self.add(Kind.ROLLOUT, step, group_id=step, rollout_id=f"t{step}.0")
        self.add(Kind.BATCH, step, n_tokens=1000.0 + step, n_sequences=256.0)
        self.phase(Phase.UPDATE, step)
        self.wait(1 - UNTOLD_S)
        ended_at = self.now.isoformat(timespec="microseconds")
        self.updated[step] = ended_at, self.seconds()
        self.wait(UNTOLD_S)
        self.add(Kind.UPDATE, step, loss=-0.5, grad_norm=0.25, learning_rate=self.rate, ended_at=ended_at)
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
        if self.events[-1].data["target_met"]:
            self.reached_s = self.updated[step or 0][1] if self.base else self.seconds()

    def seconds(self) -> float:
        """Of all attempts so far."""
        return self.before_s + (self.now - self.process).total_seconds()

    def end(self, status: Status = Status.TARGET_MET) -> None:
        self.phase(Phase.SHUTDOWN)
        self.wait(2)
        self.add(Kind.RUN_ENDED, status=status.value, wall_s=self.seconds(), time_to_target_s=self.reached_s)

    def save(self, step: int) -> None:
        """Keep weights for a deferred evaluation."""
        self.phase(Phase.CHECKPOINT, step)
        self.wait(SAVE_S)
        self.add(Kind.CHECKPOINT, step, folder=f"weights-{step:05d}", what="weights", seconds=SAVE_S, bytes=1,
                 updated_at=self.updated[step][0])

    def evaluate(self, gone_s: float = 500.0, **changes: Any) -> None:
        """Another process, with a journal of its own, begins to evaluate what was saved."""
        saved = {event.step: event.data for event in self.events if event.kind == Kind.CHECKPOINT
                 and event.data["what"] == "weights"}
        checkpoints = [{"step": step, "folder": data["folder"], "updated_at": data["updated_at"]}
                       for step, data in saved.items()]
        keys = ("run", "metric", "target", "scored", "unscored", "settings", "parts", "placements", "tasks")
        self.another_process(gone_s)
        self.base = len(self.events)
        self.add(Kind.EVALUATION_STARTED, elapsed=0.0, training_sha256="0" * 64, checkpoints=checkpoints, k=4,
                 **{**{key: self.started[key] for key in keys}, **changes})
        self.phase(Phase.STARTUP, elapsed=0.0)
        self.wait(SETUP_S)

    def evaluate_on(self, attempt: int = 2, gone_s: float = 50.0) -> int:
        """Another process goes on with the evaluation: after which step."""
        done = [event for event in self.events[self.base:] if event.kind == Kind.VALIDATION]
        step, seq = (done[-1].step or 0, done[-1].seq + 1) if done else (0, 1)
        self.another_process(gone_s)
        self.add(Kind.RESUMED, elapsed=0.0, from_step=step, from_seq=seq, attempt=attempt, forced=[])
        self.phase(Phase.STARTUP, elapsed=0.0)
        self.wait(SETUP_S)
        return step

    def another_process(self, gone_s: float) -> None:
        self.before_s += self.events[-1].elapsed_s
        self.wait(gone_s)
        self.process = self.now

    def train(self, steps: int, checkpoints: int, cuts: list[int], after: Callable[[int], object]) -> None:
        """``steps`` steps, ``after`` each, a checkpoint every so many. In step ``cuts[n]`` the n-th attempt dies."""
        self.phase(Phase.REFIT)
        step, attempt = 0, 1
        while step < steps:
            step += 1
            if cuts and cuts[0] == step:
                cuts.pop(0)
                self.phase(Phase.ROLLOUT, step)
                self.wait(3)
                attempt += 1
                step = self.resume(attempt)
                continue
            self.step(step)
            after(step)
            if step % checkpoints == 0:
                self.checkpoint(step)

    def resume(self, attempt: int = 2, gone_s: float = 100.0) -> int:
        """Another process goes on from the latest checkpoint, or from the start where there is none: after which
        step."""
        self.another_process(gone_s)
        step, seq = max(((event.step or 0, event.seq + 1) for event in self.events if event.kind == Kind.CHECKPOINT
                         and event.data["what"] == "full"), default=(0, 1))
        self.add(Kind.RESUMED, elapsed=0.0, from_step=step, from_seq=seq, attempt=attempt, forced=[])
        self.phase(Phase.STARTUP, elapsed=0.0)
        self.wait(SETUP_S)
        self.phase(Phase.REFIT)
        return step


def benchmark(passed: Sequence[int] = (160, 180), status: Status = Status.TARGET_MET, of: int = 251,
              **changes: Any) -> Recording:
    """A run whose validations, from step 18 on, solved ``passed`` tasks, ``of`` so many."""
    run = Recording(**changes)
    run.phase(Phase.REFIT)
    for step in range(1, 18 + len(passed)):
        run.step(step)
        if step >= 18:
            run.validate(step, passed[step - 18], of, target=math.ceil(0.69 * of))
    run.end(status)
    return run


def deferred(passed: Sequence[int] = (160, 180), status: Status = Status.TARGET_MET, *, more: int = 1,
             **changes: Any) -> Recording:
    """A run that trained, saving weights from step 18 on, ``more`` steps further than it was evaluated, and whose
    evaluations solved ``passed`` tasks."""
    run = Recording(**changes)
    run.phase(Phase.REFIT)
    for step in range(1, 18 + len(passed) + more):
        run.step(step)
        if step >= 18:
            run.save(step)
    run.end(Status.TRAINED)
    run.evaluate()
    for step, solved in enumerate(passed, 18):
        run.phase(Phase.REFIT, step)
        run.wait(1)
        run.validate(step, solved)
    run.end(status)
    return run


def laptop(more: dict[str, Any] | None = None, **changes: Any) -> Recording:
    """A run of something else: small, validated before it starts and every second step, stopped by its last step.
    ``more`` are settings."""
    facts = {**FACTS, "opt_base_learning_rate": 2e-3, "opt_end_learning_rate": 2e-3, "opt_gradient_clip_norm": 1.0,
             "opt_learning_rate_warmup_steps": 3, "tensor_parallelism": 1, "pipeline_parallelism": 1,
             "expert_parallelism": 1}
    sampling = {"temperature": 1.0, "top_p": 1.0}
    run = Recording(
        facts=facts, ruleset=None, prompts_per_step=4, generations_per_prompt=8, max_steps=5, profile="laptop",
        placements={"trainer": {"workers": 2}},
        tasks={"train": {"available": 2048, "count": 20}, "held-out": {"available": 320, "count": 128}},
        settings={"policy": {"checkpoint": "package:tiny/base", "max_context": 512},
                  "validation": {"split": "held-out", "max_tasks": 128, "sampling": None}, "sampling": sampling,
                  **(more or {})},
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
def make_deferred() -> Make:
    return deferred


@pytest.fixture(scope="session")
def make_laptop() -> Make:
    return laptop


@pytest.fixture(scope="session")
def make_recording() -> Make:
    return Recording


@pytest.fixture
def system() -> dict[str, str]:
    """A system description that is as it must be, of the system that the logs of ``make_benchmark`` are from."""
    return {
        "submitter": "none", "division": "closed", "status": "Available on-premise", "system_name": "bench",
        "number_of_nodes": "64", "host_processors_per_node": "2", "host_processor_model_name": "Neoverse-V2",
        "host_processor_core_count": "72", "host_processor_vcpu_count": "144", "host_processor_frequency": "3.4 GHz",
        "host_processor_caches": "L3: 228 MiB", "host_processor_interconnect": "NVLink-C2C",
        "host_memory_capacity": "960 GiB", "host_storage_type": "NVMe SSD", "host_storage_capacity": "4x 3.84 TB",
        "host_networking": "4x ConnectX-8 800 Gb/s", "host_networking_topology": "fat tree",
        "host_memory_configuration": "LPDDR5X", "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA GB300",
        "accelerator_host_interconnect": "NVLink-C2C", "accelerator_frequency": "2032 MHz",
        "accelerator_on-chip_memories": "L2: 126 MB", "accelerator_memory_configuration": "HBM3e",
        "accelerator_memory_capacity": "278 GiB", "accelerator_interconnect": "NVLink 5",
        "accelerator_interconnect_topology": "72 behind switches", "cooling": "liquid", "hw_notes": "",
        "framework": "grpo-bench", "other_software_stack": "CUDA 13.2", "operating_system": "Ubuntu 24.04",
        "sw_notes": ""}
