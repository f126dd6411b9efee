"""What a simulation knows of each quantity: ``calibrated`` was measured under these very settings, ``extrapolated``
under others, ``assumed`` not at all.

What a model assumes inside a law (how a rollout divides into its hops, how load slows a token down) decides nothing
under the settings of its calibration, where the law as a whole is what was measured. It counts where they differ, and
is then said with what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo_bench.engine import due_steps

from .laws import Linear
from .model import BATCH, Model, Quantity, Stalls
from .standing import Scenario, counted_step, setting

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

Kind = Literal["calibrated", "extrapolated", "assumed"]
WORST: Sequence[Kind] = ("assumed", "extrapolated", "calibrated")
_KIND = "hardware.gpu"
"""Said before all else: what another kind of GPU takes is not known at all."""
_SAID = 3
"""Differences that are said in words; of more, how many there are."""
_LAWS: dict[Quantity, str] = {
    Quantity.START: "start", Quantity.ROLLOUT: "train", Quantity.STALLS: "stalls",
    Quantity.LOG_PROBABILITIES: "log_probabilities", Quantity.DRIVER: "driver", Quantity.UPDATE: "update",
    Quantity.FIRST_STEP: "first", Quantity.REFIT: "refit", Quantity.VALIDATION: "validation",
    Quantity.CHECKPOINT: "checkpoint", Quantity.SHUTDOWN: "shutdown",
}
"""Where a model has the law of each."""
_INSIDE: dict[Quantity, tuple[str, ...]] = {
    Quantity.ROLLOUT: ("assumptions.load_requests", "like.limits.rollout_retries"),
    Quantity.STALLS: ("like.limits.rollout_retries",),
    Quantity.VALIDATION: ("assumptions.load_requests", "like.limits.rollout_retries"),
    Quantity.LOG_PROBABILITIES: ("assumptions.scaling",), Quantity.UPDATE: ("assumptions.scaling",),
}
"""Assumptions that bear on each besides those about its own law."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a quantity, and ``why`` it is no more; empty for what is calibrated. ``inside`` are the model's
    assumptions that an extrapolation rests on, ``causes`` all that ``why`` says or counts, each by itself."""

    quantity: Quantity
    kind: Kind
    why: str = ""
    inside: tuple[str, ...] = ()
    causes: tuple[str, ...] = field(default=(), compare=False)


def standings(plan: Plan, model: Model, scenario: Scenario) -> tuple[Standing, ...]:
    """One for each quantity that takes time in this plan."""
    due = due_steps(plan, 0)
    return tuple(_standing(quantity, plan, model, scenario) for quantity in Quantity
                 if _matters(quantity, plan, model, due))


def _standing(quantity: Quantity, plan: Plan, model: Model, scenario: Scenario) -> Standing:
    differences = [*_kind(quantity, plan, model), *_scaled(quantity, scenario), *_differences(quantity, plan, model),
                   *_beyond(quantity, plan, model, scenario)]
    said = _listed(differences)
    if why := _assumed(quantity, plan, model):
        return Standing(quantity, "assumed", "; ".join(filter(None, [why, said])), causes=(why, *differences))
    if not differences:
        return Standing(quantity, "calibrated")
    inside = tuple(text for name, text in model.assumed.items()
                   if name.startswith(f"{_LAWS[quantity]}.") or name in _INSIDE.get(quantity, ()))
    return Standing(quantity, "extrapolated", said, inside, tuple(differences))


def _assumed(quantity: Quantity, plan: Plan, model: Model) -> str:
    """Why the whole law is a guess; empty where it is none."""
    if (why := model.assumed.get(_LAWS[quantity])) is not None:
        return why
    if quantity is Quantity.CHECKPOINT and not plan.profile.checkpoint.period and (
            why := model.assumed.get("checkpoint_weights")) is not None:
        return why
    if quantity is Quantity.CHECKPOINT and not _written(plan, model):
        guess = model.assumptions
        size = guess.full_bytes if plan.profile.checkpoint.period else guess.weights_bytes
        return f"none was measured: taken as {size / 1e9:,.0f} GB at {guess.bytes_per_s / 1e9:g} GB/s"
    return ""


def _written(plan: Plan, model: Model) -> bool:
    """Whether the model has a law for the checkpoints that this plan writes."""
    return model.checkpoint is not None or (not plan.profile.checkpoint.period
                                            and model.checkpoint_weights is not None)


def _kind(quantity: Quantity, plan: Plan, model: Model) -> Iterator[str]:
    if _KIND in model.needs.get(quantity, ()):
        for difference in _different(_KIND, plan, model):
            yield f"{difference}, and taken to be as fast"


def _differences(quantity: Quantity, plan: Plan, model: Model) -> Iterator[str]:
    """How the settings are not those of the calibration, the kind of GPU apart."""
    grpo, (fewest, most) = plan.profile.grpo, model.rows
    batch = grpo.prompts_per_step * grpo.generations_per_prompt
    names = model.needs.get(quantity, ())
    if not fewest <= batch <= most and BATCH & set(names):
        yield f"{batch} rollouts a step, not {fewest if fewest == most else f'{fewest} to {most}'}"
    for key in names:
        if key not in BATCH and key != _KIND:
            yield from _different(key, plan, model)


def _different(key: str, plan: Plan, model: Model) -> Iterator[str]:
    here, there = setting(plan, key), model.like.get(key)
    if _plain(here) != _plain(there):
        yield f"{key} is {_shown(here)}, not {_shown(there)}"


def _beyond(quantity: Quantity, plan: Plan, model: Model, scenario: Scenario) -> Iterator[str]:
    """How the run goes on where the logs had ended."""
    if quantity is Quantity.STALLS and any(model.stalls.order):
        yield from _unlogged(model.stalls, plan.profile.grpo.prompts_per_step, _last(plan, model, scenario))
    if quantity is Quantity.VALIDATION and plan.profile.validation.deferred and model.evaluation is None:
        yield "an evaluation's start-up is assumed to be the training's, and weights to be read as fast as written"
    if quantity is Quantity.ROLLOUT and 1 < len(model.train) < _last(plan, model, scenario):
        yield f"steps after {len(model.train)} were in no log and are taken to be like that one"


def _last(plan: Plan, model: Model, scenario: Scenario) -> int:
    """The step that a run of the plan ends with."""
    ends = None if plan.profile.validation.deferred else counted_step(plan, model, scenario)
    return plan.profile.grpo.max_steps if ends is None else ends


def _unlogged(stalls: Stalls, prompts: int, last: int) -> Iterator[str]:
    """How the stalls of the prompts up to step ``last``, of so many ``prompts`` each, are not those of the logs."""
    blocks = len(stalls.order)
    apart = blocks if prompts % (2 * stalls.block) == 0 else blocks - stalls.paired
    whole, known = (count * stalls.block // prompts for count in (blocks, apart))
    ends = f"prompts after step {whole} were in no log and are taken to stall as the first ones did"
    if last > known and known < whole:
        yield f"of prompts after step {known} it is a guess which ones stall" + (f"; {ends}" if last > whole else "")
    elif last > whole:
        yield ends


def _scaled(quantity: Quantity, scenario: Scenario) -> Iterator[str]:
    if (factor := scenario.scales.get(quantity, 1.0)) != 1:
        yield f"scaled by {factor:g}"
    rolling = quantity in (Quantity.ROLLOUT, Quantity.VALIDATION)
    if scenario.trainer_gpus != 1 and quantity in (Quantity.UPDATE, Quantity.LOG_PROBABILITIES):
        yield f"{scenario.trainer_gpus:g} times the trainer's GPUs"
    if scenario.engines != 1 and rolling:
        yield f"{scenario.engines:g} times the engines"
    if scenario.decoding != 1 and rolling:
        yield f"tokens decoded {scenario.decoding:g} times as fast"


def _listed(differences: list[str]) -> str:
    left = len(differences) - _SAID
    return ", ".join([*differences[:_SAID], *([f"and {left} more"] if left > 0 else [])])


def _matters(quantity: Quantity, plan: Plan, model: Model, due: Sequence[int]) -> bool:
    profile, stalls = plan.profile, model.stalls
    matters = {
        Quantity.STALLS: bool(any(stalls.order) or stalls.sudden_share),
        Quantity.LOG_PROBABILITIES: _takes(model.log_probabilities),
        Quantity.DRIVER: _takes(model.driver),
        Quantity.FIRST_STEP: bool(model.first.log_probabilities or model.first.update or model.first.rollout),
        Quantity.VALIDATION: bool(due),
        Quantity.CHECKPOINT: bool(profile.checkpoint.period or profile.checkpoint.final
                                  or (profile.validation.deferred and any(due))),
        Quantity.SHUTDOWN: bool(model.shutdown.middle),
    }
    return matters.get(quantity, True)


def _takes(law: Linear) -> bool:
    return bool(law.fixed or law.per_row or law.per_token)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value}"
