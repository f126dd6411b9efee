"""The values that MLLOG wants to hear before a run starts, each from where the run knows it.

The settings say what was asked for, the trainer's facts what it computes, the placements on how many ranks, the
validations how many tasks there were. A key whose value nobody said is left out, which the checkers refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_bench.contract import Event, Kind

from .config import MllogConfig
from .training_6_1 import RULES

OPTIMIZER = (
    "opt_name", "opt_base_learning_rate", "opt_end_learning_rate", "opt_adamw_beta_1", "opt_adamw_beta_2",
    "opt_adamw_epsilon", "opt_adamw_weight_decay", "opt_gradient_clip_norm", "opt_learning_rate_warmup_steps",
    "opt_learning_rate_decay_schedule",
)
LAYOUT = ("tensor_parallelism", "pipeline_parallelism", "context_parallelism", "expert_parallelism")
PRECISION = tuple(f"lowest_numerical_precision_in_{where}" for where in ("linear", "attn", "comm"))
TRAINER_FACTS = (*OPTIMIZER, *LAYOUT, *PRECISION, "micro_batch_size")
"""Keys that a trainer's facts hold."""
_SPLIT_BY = ("tensor_parallelism", "pipeline_parallelism", "context_parallelism")
"""Ways to spread one replica of the policy over ranks; expert parallelism reuses the ranks of the data's."""

Values = dict[str, tuple[Any, dict[str, Any]]]


def header(started: Mapping[str, Any], settings: Mapping[str, Any], identity: MllogConfig,
           history: Sequence[Event]) -> Values:
    """Key -> value and further metadata, in the order in which the checkers want to see them. ``started`` is the data
    of the run's first event, ``settings`` are the training's, with the validation section of the evaluation's."""
    facts: Mapping[str, Any] = started["parts"]["trainer"]["facts"]
    prompts, generations = started["prompts_per_step"], started["generations_per_prompt"]
    batch = prompts * generations
    sampling = settings["sampling"]
    validation = settings["validation"]["sampling"] or sampling
    values: dict[str, Any] = {
        "cache_clear": identity.caches_cleared,
        **_submission(started, settings, identity),
        "seed": started["seed"],
        "max_steps": started["max_steps"],
        "global_batch_size": batch,
        **_said(facts, ("micro_batch_size",)),
        "max_sequence_length": settings["policy"]["max_context"],
        "train_samples": _tasks(started, settings["grpo"]["split"])["available"] * generations,
        "eval_samples": _evaluated(started, settings, history),
        "init_checkpoint_step": 0,
        **_said(facts, (*OPTIMIZER, *LAYOUT, *PRECISION)),
        "config_filename": "profile.json",
        "generation_training_rollout_temperature": sampling["temperature"],
        "generation_training_rollout_top_p": sampling["top_p"],
        "generation_validation_rollout_temperature": validation["temperature"],
        "generation_validation_rollout_top_p": validation["top_p"],
        "num_prompts_per_step": prompts,
        "num_generations_per_prompt": generations,
        **_accumulation(batch, facts, started["placements"]["trainer"]["workers"]),
        "target_accuracy": started["target"],
    }
    return {
        **{key: (value, {}) for key, value in values.items()},
        "scored": _scored(started, history),
        "stack": ({"policy": settings["policy"]["checkpoint"],
                   **{role: part["name"] for role, part in started["parts"].items()}}, {}),
    }


def _submission(started: Mapping[str, Any], settings: Mapping[str, Any], identity: MllogConfig) -> dict[str, Any]:
    optional = {"status": identity.status, "poc_name": identity.poc_name, "poc_email": identity.poc_email}
    division = (settings.get("ruleset") or {}).get("division", "closed")
    said = {"benchmark": RULES.benchmark, "org": identity.org, "division": division,
            "platform": identity.platform or started["profile"],
            **{name: value for name, value in optional.items() if value is not None}}
    return {f"submission_{name}": value for name, value in said.items()}


def _scored(started: Mapping[str, Any], history: Sequence[Event]) -> tuple[bool, dict[str, Any]]:
    """Whether both training and evaluation can count, and why not."""
    begun = [started, *(event.data for event in history if event.kind == Kind.EVALUATION_STARTED)]
    reasons = dict.fromkeys(reason for data in begun for reason in data["unscored"])
    return all(data["scored"] for data in begun), {"reasons": list(reasons)}


def _said(facts: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: facts[key] for key in keys if key in facts}


def _tasks(started: Mapping[str, Any], split: str) -> Mapping[str, int]:
    return started["tasks"][split]


def _evaluated(started: Mapping[str, Any], settings: Mapping[str, Any], history: Sequence[Event]) -> int:
    """Tasks of a validation: as counted by the first, else as planned."""
    counted = next((event.data["tasks"] for event in history if event.kind == Kind.VALIDATION), None)
    planned = _tasks(started, settings["validation"]["split"])["available"]
    return counted if counted is not None else min(planned, settings["validation"]["max_tasks"] or planned)


def _accumulation(batch: int, facts: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Micro-batches that each replica of the policy goes through in a step."""
    if not facts.keys() >= {*_SPLIT_BY, "micro_batch_size"}:
        return {}
    replicas = max(1, ranks // math.prod(facts[key] for key in _SPLIT_BY))
    return {"gradient_accumulation_steps": math.ceil(batch / (replicas * facts["micro_batch_size"]))}
