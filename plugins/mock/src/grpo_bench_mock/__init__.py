"""Deterministic, instant stand-ins for every role.

Nothing here computes with a model, yet everything the engine relies on holds: a token depends on seed, rollout, turn
and weights only; weights change with every trained token; log-probabilities are a function of ids and weights, so that
a refit that did not happen shows; rewards rise as updates add up. Durations are ``asyncio.sleep`` of configured
seconds, so that a run under a virtual clock models hours. Faults can be asked for at named points.
"""

from ._plugins import agent, environment, generator, hardware, ruleset, scripted, trainer

__all__ = ["agent", "environment", "generator", "hardware", "ruleset", "scripted", "trainer"]
