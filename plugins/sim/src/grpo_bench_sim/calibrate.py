"""A model of a run out of its own journal, so that a simulation of the same profile takes as long as the run did.

Rollouts take what those of the same step took: each draws from the recorded values, retries included, under the
concurrency and the contention of that run. What the engine itself spends in a step counts as the driver's. A step's
update and log-probabilities grow with its rollouts and tokens as far as the run's steps show. What a run cannot show is
in ``assumed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_bench.contract import Phase, RunFolderError
from grpo_bench.observers import read_run

from .fitting import linear, quantiles
from .laws import Law, Linear, Recorded
from .model import Assumptions, Evaluated, First, Model, Quantity, Rollouts, Shares
from .observed import Observed, Rolled, Step, observe

_VALUES = 40_000
"""Most values of all laws of rollouts together."""
_VALUES_OF_STEP = 512
_HOPS = ("sandbox_start", "generate", "score")
_READS = {"ranks": "trainer.workers", "policy_nodes": "hardware.policy_nodes", "engines": "generator.workers",
          "engine_gpus": "generator.tensor_parallel", "timeout_s": "agent.agent_timeout_s"}
_NO_LOAD = 1e9
_MACHINE = ("policy.", "hardware.", "fabric.")
_BATCH = ("grpo.prompts_per_step", "grpo.generations_per_prompt")
_TRAINING = (*_MACHINE, *_BATCH, "trainer.", "grpo.loss.")
_SERVING = (*_MACHINE, "sampling.", "limits.concurrency", "limits.rollout_s", "limits.rollout_retries", "generator.",
            "environment.", "agent.", "rollout.")
_ROLLING = (*_SERVING, *_BATCH, "grpo.split", "schedule.")
_NEEDS: Mapping[Quantity, tuple[str, ...]] = {
    Quantity.START: (*_MACHINE, "trainer.", "generator.", "environment.", "agent."),
    Quantity.ROLLOUT: _ROLLING,
    Quantity.STALLS: _ROLLING,
    Quantity.LOG_PROBABILITIES: _TRAINING,
    Quantity.DRIVER: (*_TRAINING, "schedule."),
    Quantity.UPDATE: _TRAINING,
    Quantity.FIRST_STEP: _TRAINING,
    Quantity.REFIT: (*_MACHINE, "refit.", "schedule.in_flight", "trainer.", "generator."),
    Quantity.VALIDATION: (*_SERVING, "validation.split", "validation.max_tasks", "validation.k",
                          "validation.sampling"),
    Quantity.CHECKPOINT: (*_MACHINE, "trainer."),
    Quantity.SHUTDOWN: (*_MACHINE, "trainer.", "generator.", "environment.", "agent."),
}
"""What each quantity depends on: settings, and sections by the beginning of their settings' names."""


def calibrated_on(folder: Path) -> Model:
    """The model of the run in ``folder``; RunFolderError where that has no step that is over, or is a simulation."""
    seen = observe(read_run(folder))
    if seen.started.get("modelled"):
        raise RunFolderError(f"{folder} is a simulation: what it took is what a model says already",
                             hint="name a run that trained")
    if "schedule" not in seen.started.get("settings", {}) or not seen.started["prompts_per_step"]:
        raise RunFolderError(f"{folder} does not say what the run is made of",
                             hint="an older grpo-bench recorded it; name another run")
    if seen.start is None or not any(seen.train.values()):
        raise RunFolderError(f"{folder} has no step that is over, so there is nothing to calibrate on",
                             hint="name a run that trained")
    return _model(seen, folder.resolve().name)


def _model(seen: Observed, run: str) -> Model:
    started, like = seen.started, flat(seen.started["settings"])
    batch = started["prompts_per_step"] * started["generations_per_prompt"]
    last = max(seen.steps)
    steps = seen.later or list(seen.steps.values())
    rooms = max(8, min(_VALUES_OF_STEP, _VALUES // (last + 1 + max(seen.validation, default=0))))
    update, log_probabilities = _work(steps, Phase.UPDATE), _work(steps, Phase.LOG_PROBABILITIES)
    train = tuple(_rollouts(seen.train, step, rooms) for step in range(1, last + 1))
    return Model(
        name=run, source=f"run {run} of profile {started['profile']}, {len(seen.steps)} steps",
        method="its journal: rollouts as recorded, by step; least squares over its steps for updates and "
               "log-probabilities; the rest as recorded",
        date=seen.at[:10], like=like, reads={name: key for name, key in _READS.items() if key in like},
        needs={quantity: tuple(key for key in like if key.startswith(keys)) for quantity, keys in _NEEDS.items()},
        load=_load(seen), rows=(batch, batch), passes_after={str(batch): (seen.met or last) * batch},
        start=Recorded(values=(seen.start or 0.0,)), first=_first(seen, update, log_probabilities), train=train,
        validation=tuple(_rollouts(seen.validation, version, rooms)
                         for version in range(max(seen.validation) + 1)) if seen.validation else train[-1:],
        log_probabilities=log_probabilities, update=update,
        driver=Linear(fixed=fmean(_own(step, like) for step in steps)), shutdown=_law([seen.shutdown]),
        refit=_law(_refits(seen)),
        checkpoint=_law(seen.saved["full"]) if seen.saved["full"] else None,
        checkpoint_weights=_law(seen.saved["weights"]) if seen.saved["weights"] else None,
        evaluation=_evaluated(seen), assumptions=_assumptions(seen), assumed=_assumed(seen, like))


def _rollouts(seen: Mapping[int, Sequence[Rolled]], at: int, rooms: int) -> Rollouts:
    """The laws of one step, or of the nearest before it that had rollouts, else after it."""
    known = [step for step, rolled in seen.items() if rolled]
    rolled = seen[max((step for step in known if step <= at), default=min(known))]
    return Rollouts(seconds=quantiles([rollout.seconds for rollout in rolled], rooms),
                    tokens=quantiles([rollout.tokens for rollout in rolled], rooms),
                    shares=_shares(rolled), turns=min(1000, max(1, round(fmean(rollout.turns for rollout in rolled)))))


def _shares(rolled: Sequence[Rolled]) -> Shares:
    whole = sum(rollout.seconds for rollout in rolled)
    if not whole:
        return Shares()
    shares = {hop: sum(rollout.hops.get(hop, 0.0) for rollout in rolled) / whole for hop in _HOPS}
    return Shares(**shares, environment=max(0.0, 1 - sum(shares.values())))


def _work(steps: Sequence[Step], phase: Phase) -> Linear:
    return linear([step.rollouts for step in steps], [step.tokens for step in steps],
                  [step.phases.get(phase, 0.0) for step in steps])


def _first(seen: Observed, update: Linear, log_probabilities: Linear) -> First:
    """What the first step took beyond a later one of its size."""
    first = seen.steps[min(seen.steps)]
    if not seen.later or not first.fresh:
        return First()
    return First(log_probabilities=_beyond(first, Phase.LOG_PROBABILITIES, log_probabilities),
                 update=_beyond(first, Phase.UPDATE, update),
                 rollout=max(0.0, (seen.first_refit or 0.0) - fmean(_refits(seen))))


def _beyond(step: Step, phase: Phase, later: Linear) -> float:
    return max(0.0, step.phases.get(phase, 0.0) - later.middle(step.rollouts, step.tokens))


def _refits(seen: Observed) -> list[float]:
    return [step.phases.get(Phase.REFIT, 0.0) for step in seen.steps.values()]


def _own(step: Step, like: Mapping[str, Any]) -> float:
    """What of a step's time is the engine's own. A drain of rollouts in flight is none: simulations have their own."""
    others = {Phase.ROLLOUT, Phase.LOG_PROBABILITIES, Phase.UPDATE, Phase.REFIT}
    if like["schedule.max_age"] and like["schedule.in_flight"] == "drain":
        others.add(Phase.DRAIN)
    return sum(seconds for phase, seconds in step.phases.items() if phase not in others)


def _load(seen: Observed) -> float:
    """Mean number of requests on an engine while steps waited for rollouts."""
    engines = seen.started.get("placements", {}).get("generator", {}).get("workers") or 1
    waited = sum(step.phases.get(Phase.ROLLOUT, 0.0) for step in seen.steps.values())
    busy = sum(rollout.hops.get("generate", 0.0) for rolled in seen.train.values() for rollout in rolled)
    return max(1.0, busy / waited / engines) if waited else 1.0


def _evaluated(seen: Observed) -> Evaluated | None:
    """The process of the run's own evaluation; None where none has read weights."""
    found = seen.evaluation
    if found.start is None or not found.reading:
        return None
    return Evaluated(start=_law([found.start]), reading=_law(found.reading), shutdown=_law([found.shutdown]))


def _law(values: Sequence[float]) -> Law:
    return Recorded(values=quantiles(values, _VALUES_OF_STEP).values)


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings by dotted key; what is no section is a value."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found.update(flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value})
    return found


def _assumptions(seen: Observed) -> Assumptions:
    """A checkpoint of a kind that the run did not write is as fast as one of the weights alone; a full one has two
    moments of each weight besides."""
    size, seconds = seen.weights_bytes, fmean(seen.saved["weights"] or [0.0])
    rate = {"bytes_per_s": size / seconds} if size and seconds else {}
    return Assumptions(load_requests=_NO_LOAD, weights_bytes=size, full_bytes=3 * size, **rate)


def _assumed(seen: Observed, like: Mapping[str, Any]) -> dict[str, str]:
    found = {"assumptions.load_requests": "a run at one load does not show how others would slow a rollout down: taken "
                                          "to be not at all",
             "stalls.order": "stalls are in the rollouts' own times; which of a step's prompts stalled is not kept"}
    if not seen.validation:
        found["validation"] = "the run has no validation: its rollouts are taken to be as those of the last step"
    if seen.saved["full"] and not seen.saved["weights"]:
        found["checkpoint_weights"] = "the run wrote no checkpoint of the weights alone: taken as a full one"
    if not seen.later:
        found["first"] = "the run has one step in a process: what a first one takes beyond others is not known"
    if seen.met is None and like.get("validation.metric") is not None:
        found["passes_after"] = "the run did not meet its target: its last step is taken to"
    return found
