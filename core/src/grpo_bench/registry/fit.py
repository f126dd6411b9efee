"""Do the parts fit together? Pure checks on descriptors and settings.

Each raises a PlanError that names both sides, and file and line of the one that was set last.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from ..contract import InputError, PlanError, Plugin, Role, SamplingSettings
from .lines import Key
from .names import choices
from .profile import Profile
from .resolved import Resolved

FALLBACK = "safetensors"
"""The transport that goes by files; another one is preferred where both sides have it."""
STORED = ("hf_folder", FALLBACK)
"""How weights that lie on disk can reach a generator, the better one first: each engine reads them there itself, or
they are sent."""

_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

Descriptors = Mapping[Role, Plugin]
Blame = Callable[..., InputError]
"""Takes the paths of the values that do not fit together, and ``message`` and ``hint``."""


def check_fit(resolved: Resolved, descriptors: Descriptors, idle: Container[Role] = ()) -> str:
    """Check everything; returns the transport that carries weights. With a trainer that is ``idle`` they come from
    checkpoints."""
    profile, blame = resolved.profile, partial(_blame, resolved)
    _check_sampling(profile, descriptors, blame)
    _check_refit_mode(profile, descriptors[Role.GENERATOR], blame)
    _check_splits(profile, descriptors[Role.ENVIRONMENT], blame)
    _check_agent(descriptors[Role.AGENT], descriptors[Role.ENVIRONMENT], blame)
    _check_sizes(profile, blame)
    _check_deferred(profile, descriptors[Role.GENERATOR], blame)
    _check_restarts(profile, blame)
    if Role.TRAINER in idle:
        return stored_transport(descriptors[Role.GENERATOR])
    return _transport(profile, descriptors[Role.TRAINER], descriptors[Role.GENERATOR], blame)


def _blame(resolved: Resolved, *paths: Key, message: str, hint: str = "") -> InputError:
    return resolved.merged.error(resolved.merged.latest(*paths), message, hint=hint, kind=PlanError)


def _transport(profile: Profile, trainer: Plugin, generator: Plugin, blame: Blame) -> str:
    sends, receives = trainer.capabilities.sends, generator.capabilities.receives
    both = f"trainer {trainer.name!r} sends {_list(sends)}; generator {generator.name!r} receives {_list(receives)}"
    common = sorted(sends & receives, key=lambda name: (name == FALLBACK, name))
    wanted = profile.refit.transport
    if wanted is not None and wanted not in common:
        lacking = {**trainer.capabilities.lacking, **generator.capabilities.lacking}
        why = f"cannot carry weights here: {lacking[wanted]}" if wanted in lacking else "is not known to both sides"
        raise blame(("refit", "transport"), message=f"{wanted!r} {why}: {both}",
                    hint="leave it out to take the first that is" if common else "")
    if not common:
        raise blame(("generator", "use"), ("trainer", "use"), message=f"weights cannot reach the generator: {both}",
                    hint="choose a trainer and a generator that share one")
    return wanted or common[0]


def _check_sampling(profile: Profile, descriptors: Descriptors, blame: Blame) -> None:
    train, validation = profile.sampling, profile.validation.sampling or profile.sampling
    if reshaped := sorted(_deviating(train) - {"temperature"}):
        raise blame(("sampling", reshaped[0]), hint="set it under validation.sampling",
                    message="training samples from the whole distribution, so that generator and trainer share one "
                            "support; only the temperature may change")
    for role in (Role.GENERATOR, Role.AGENT):
        plugin = descriptors[role]
        honoured = plugin.capabilities.sampling
        if role is Role.AGENT and not honoured:
            continue
        for section, settings in ((("sampling",), train), (("validation", "sampling"), validation)):
            for name in sorted(_deviating(settings) - honoured):
                raise blame((*section, name), message=f"{role.value} {plugin.name!r} does not honour {name} "
                                                      f"{getattr(settings, name)}; it honours {_list(honoured)}")


def _deviating(settings: SamplingSettings) -> set[str]:
    neutral = SamplingSettings()
    return {name for name in _SAMPLED if getattr(settings, name) != getattr(neutral, name)}


def _check_refit_mode(profile: Profile, generator: Plugin, blame: Blame) -> None:
    mode = profile.schedule.in_flight
    if profile.schedule.mode == "async" and mode not in generator.capabilities.refit:
        raise blame(("schedule", "in_flight"), ("schedule", "mode"), ("generator", "use"),
                    message=f"generator {generator.name!r} cannot {mode!r} running rollouts at a refit; it can "
                            f"{_list(generator.capabilities.refit)}", hint="see schedule.in_flight")


def _check_splits(profile: Profile, environment: Plugin, blame: Blame) -> None:
    splits = environment.capabilities.splits
    for section, split in (("grpo", profile.grpo.split), ("validation", profile.validation.split)):
        if split not in splits:
            raise blame((section, "split"), ("environment", "use"), message=f"environment {environment.name!r} has no "
                        f"split {split!r:.80}{choices(split, splits)}", hint=f"see {section}.split")


def _check_agent(agent: Plugin, environment: Plugin, blame: Blame) -> None:
    offered, blamed = environment.capabilities, partial(blame, ("agent", "use"), ("environment", "use"))
    for what, needs, has in (("task keys", agent.capabilities.prompt, offered.prompt | {"statement"}),
                             ("sandbox abilities", agent.capabilities.sandbox, offered.sandbox)):
        if needs - has:
            raise blamed(message=f"agent {agent.name!r} needs {what} {_list(needs - has)}, which environment "
                                 f"{environment.name!r} does not offer; it offers {_list(has)}")
    if agent.capabilities.form == "program" and "spawn" not in offered.sandbox:
        raise blamed(message=f"agent {agent.name!r} is a program that runs inside the sandbox, but environment "
                             f"{environment.name!r} cannot spawn one; it offers {_list(offered.sandbox)}")


def _check_sizes(profile: Profile, blame: Blame) -> None:
    context = profile.policy.max_context
    for section, settings in ((("sampling",), profile.sampling),
                              (("validation", "sampling"), profile.validation.sampling)):
        if settings is not None and settings.max_tokens > context:
            raise blame((*section, "max_tokens"), ("policy", "max_context"),
                        message=f"{'.'.join(section)}.max_tokens = {settings.max_tokens} of one reply are more than "
                                f"policy.max_context = {context}",
                        hint=f"{context} leaves it to the context alone to bound replies")
    validation, steps = profile.validation, profile.grpo.max_steps
    last = steps - steps % validation.period
    reached = validation.at_start or validation.at_end or (last > 0 and last >= validation.start_at)
    if validation.metric is not None and not reached:
        raise blame(("validation", "metric"), ("grpo", "max_steps"), ("validation", "period"),
                    ("validation", "start_at"),
                    message=f"no validation takes place within grpo.max_steps = {steps} with period = "
                            f"{validation.period} and start_at = {validation.start_at}, so the target could never "
                            "be met")


def stored_transport(generator: Plugin) -> str:
    """How weights that lie on disk reach the generator; empty where they cannot."""
    return next((name for name in STORED if name in generator.capabilities.receives), "")


def _check_deferred(profile: Profile, generator: Plugin, blame: Blame) -> None:
    if profile.validation.deferred and not stored_transport(generator):
        raise blame(("validation", "deferred"), ("generator", "use"),
                    message=f"a deferred evaluation takes weights from checkpoints over {_list(STORED)}, of which "
                            f"generator {generator.name!r} receives none; it receives "
                            f"{_list(generator.capabilities.receives)}",
                    hint="choose another generator, or validate while it trains")


def _check_restarts(profile: Profile, blame: Blame) -> None:
    restarts = profile.limits.trainer_restarts
    if restarts and not profile.checkpoint.period:
        raise blame(("limits", "trainer_restarts"), ("checkpoint", "period"),
                    message=f"limits.trainer_restarts = {restarts} goes on from full checkpoints, and with "
                            "checkpoint.period = 0 none is written",
                    hint="give checkpoint.period a number of steps, or limits.trainer_restarts = 0")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
