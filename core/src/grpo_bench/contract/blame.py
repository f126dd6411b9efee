"""Whose part failed where a rollout is no sample, and whose work its hops are."""

from __future__ import annotations

from collections.abc import Mapping

from .roles import Role
from .values import Cause

HOPS: Mapping[str, tuple[Role, ...]] = {
    "sandbox_start": (Role.ENVIRONMENT,), "generate": (Role.GENERATOR,),
    "environment": (Role.AGENT, Role.ENVIRONMENT), "score": (Role.ENVIRONMENT,),
}
"""The roles at work in each hop of a rollout; waiting in the queue is nobody's."""

_CAUSES: Mapping[str, tuple[Role, ...]] = {
    Cause.SANDBOX_START: (Role.ENVIRONMENT,), Cause.GENERATOR: (Role.GENERATOR,), Cause.AGENT: (Role.AGENT,),
    Cause.ENVIRONMENT: (Role.ENVIRONMENT,), Cause.SCORE: (Role.ENVIRONMENT,), Cause.WORKER: (Role.FABRIC,),
}


def to_blame(cause: str, durations: Mapping[str, float]) -> tuple[Role, ...]:
    """The roles that a rollout which ended by ``cause`` is charged to: the cause's, or, where its whole time was up,
    those of the hop that took most of it. Empty: the core's."""
    if cause == Cause.DEADLINE and durations:
        return HOPS.get(max(durations, key=durations.__getitem__), ())
    return _CAUSES.get(cause, ())
