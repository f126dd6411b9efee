"""Whether trainer and generator compute the same log-probabilities, and what a plan does where they do not.

A real part next to a stand-in runs, so that either can be worked on without the other; but then nothing that sets the
generator's log-probabilities against the trainer's means anything. What does so by default is left out; what a profile
asks for in so many words is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..contract import InputError, PlanError, Plugin
from .layers import Origin
from .lines import Key
from .resolved import Resolved

_MASK: Key = ("grpo", "masks", "sequence_error_max")


def incomparable(trainer: Plugin, generator: Plugin) -> str:
    """Why log-probabilities of the two cannot be compared; empty where they can."""
    ours, theirs = trainer.capabilities.computes, generator.capabilities.computes
    if ours == theirs:
        return ""
    return (f"trainer {trainer.name!r} computes log-probabilities of {ours!r}, generator {generator.name!r} of "
            f"{theirs!r}")


def without_comparisons(resolved: Resolved, why: str) -> Resolved:
    """The profile without the mask that compares by default; PlanError where it asks for a comparison itself."""
    loss = resolved.profile.grpo.loss
    if loss.importance_correction:
        raise _refused(resolved, ("grpo", "loss", "importance_correction"), why, "false")
    if loss.kl.penalty and loss.kl.on_policy_approximation:
        raise _refused(resolved, ("grpo", "loss", "kl", "on_policy_approximation"), why, "false")
    if _MASK in resolved.merged.origins and resolved.profile.grpo.masks.sequence_error_max is not None:
        raise _refused(resolved, _MASK, why, '"off"')
    if _MASK in resolved.merged.origins:
        return resolved
    origins = {**resolved.merged.origins, _MASK: Origin("default", note=f"off: {why}")}
    return replace(resolved, merged=replace(resolved.merged, origins=origins),
                   profile=_updated(resolved.profile, _MASK, None))


def _refused(resolved: Resolved, path: Key, why: str, instead: str) -> InputError:
    message = f"compares the generator's log-probabilities with the trainer's, but {why}"
    return resolved.merged.error(path, message, kind=PlanError,
                                 hint=f"set {path[-1]} = {instead}, or choose parts that compute the same")


def _updated(model: Any, path: Key, value: Any) -> Any:
    inner = value if len(path) == 1 else _updated(getattr(model, str(path[0])), path[1:], value)
    return model.model_copy(update={str(path[0]): inner})
