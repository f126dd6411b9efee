"""Which model of times belongs to a profile: the one that was made of runs of its policy."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_bench.contract import InputError

from .model import Model, read_model
from .standing import setting

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

POLICY = "policy.config"
"""The setting that has to be the same: models of other policies say nothing."""


def packaged() -> list[Model]:
    """The models that this distribution brings, by name."""
    folder = Path(str(files("grpo_bench_sim").joinpath("models")))
    return [read_model(file) for file in sorted(folder.glob("*.json"))]


def model_for(plan: Plan) -> Model:
    """The packaged model of the plan's policy, of several the one whose conditions it shares most of; InputError where
    there is none."""
    policy = setting(plan, POLICY)
    known = packaged()
    found = [model for model in known if policy is not None and model.like.get(POLICY) == policy]
    if not found:
        names = ", ".join(model.name for model in known) or "none"
        raise InputError(f"profile {plan.name!r}: how long its parts take is not known; there are models of: {names}",
                         hint="--calibrate RUN takes the times of a run like it, --model FILE those of a file")
    return max(found, key=lambda model: _shared(plan, model.like))


def _shared(plan: Plan, like: Any) -> int:
    return sum(setting(plan, key) == value for key, value in like.items())
