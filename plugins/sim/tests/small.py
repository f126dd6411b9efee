"""A small model whose times can be told in the head, for the profile ``mock``, and plans to go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_bench_sim.laws import Linear, Lognormal, Recorded
from grpo_bench_sim.model import First, Measured, Model, Quantity, Rollouts, Shares, Stalls

from grpo_bench.registry import Plan, resolve, survey

_BOTH = ("deterministic=auto", "grpo.max_steps=6", "grpo.prompts_per_step=4", "validation.max_tasks=4",
         "validation.period=2", "checkpoint.final=false")
MOCK = (*_BOTH, "checkpoint.period=1")
"""Six steps of 16 rollouts; a validation is due after each second one, a full checkpoint is written after each."""
DEFERRED = (*_BOTH, "checkpoint.period=0", "validation.deferred=true")
"""The same, where each second step saves weights instead."""
ROLLOUTS = Rollouts(seconds=Lognormal(median=100.0), tokens=Lognormal(median=50.0),
                    shares=Shares(generate=0.5, environment=0.5), turns=2)


def small(**others: Any) -> Model:
    """Rollouts of 100 s, start-up 60, update 20, log-probabilities 5, refit 3, checkpoint 4: nothing is drawn that
    could differ, and load does not matter."""
    facts: dict[str, Any] = {
        "name": "small", "source": "a test", "method": "made up", "date": "2026-01-02",
        "like": {"policy.config": None, "grpo.generations_per_prompt": 4, "schedule.mode": "sync"},
        "needs": {Quantity.ROLLOUT: () if "like" in others else ("schedule.mode", "grpo.generations_per_prompt")},
        "load": 1, "rows": (16, 64), "passes_after": {"16": 64}, "start": Lognormal(median=60.0),
        "train": (ROLLOUTS,), "validation": (ROLLOUTS,), "log_probabilities": Linear(fixed=5.0),
        "update": Linear(fixed=20.0), "refit": Lognormal(median=3.0), "checkpoint": Recorded(values=(4.0,)),
        "assumptions": {"load_requests": 1e9}}
    return Model.model_validate(facts | others)


def varied(**others: Any) -> Model:
    """The same with rollouts that differ, stalls and a first step that takes longer."""
    rolling = ROLLOUTS.model_copy(update={"seconds": Lognormal(median=100.0, sigma=0.3)})
    return small(**{"train": (rolling,), **others}, stalls=Stalls(order=(0.0, 30.0, 0.0), block=8),
                 first=First(log_probabilities=2.0, update=6.0))


def seen(batch: int, *, held_out: bool = True, **values: tuple[float, ...]) -> Measured:
    return Measured.model_validate({"batch": batch, "replicas": (4, 5, 6), "held_out": held_out, "values": values})


def kept(model: Model, folder: Path) -> str:
    """The model as a file."""
    file = folder / "model.json"
    file.write_text(model.model_dump_json())
    return str(file)


def planned(*overrides: str, profile: str = "mock", seed: int = 3) -> Plan:
    return survey(resolve(profile, overrides=overrides, cwd=Path("/")), seed)
