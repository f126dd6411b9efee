"""Do the parts fit together? Pure checks on descriptors and settings; each raises a PlanError that names both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..contract import PlanError, Plugin, Role, SamplingSettings
from .names import choices
from .profile import Profile

CHECKPOINT_TRANSPORT = "safetensors"
"""The transport every generator can fall back to; another one is preferred where both sides have it."""

_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

Descriptors = Mapping[Role, Plugin]


def check_fit(profile: Profile, descriptors: Descriptors) -> str:
    """Check everything; returns the transport that carries weights."""
    _check_sampling(profile, descriptors)
    _check_refit_mode(profile, descriptors[Role.GENERATOR])
    _check_splits(profile, descriptors[Role.ENVIRONMENT])
    _check_agent(descriptors[Role.AGENT], descriptors[Role.ENVIRONMENT])
    _check_determinism(profile, descriptors)
    _check_sizes(profile)
    return _transport(profile, descriptors[Role.TRAINER], descriptors[Role.GENERATOR])


def _transport(profile: Profile, trainer: Plugin, generator: Plugin) -> str:
    sends, receives = trainer.capabilities.sends, generator.capabilities.receives
    both = f"trainer {trainer.name!r} sends {_list(sends)}; generator {generator.name!r} receives {_list(receives)}"
    common = sorted(sends & receives, key=lambda name: (name == CHECKPOINT_TRANSPORT, name))
    wanted = profile.refit.transport
    if wanted is not None and wanted not in common:
        raise PlanError(f"refit.transport: {wanted!r} is not known to both sides: {both}",
                        hint="leave it out to take the first that is" if common else "")
    if not common:
        raise PlanError(f"weights cannot reach the generator: {both}",
                        hint="choose a trainer and a generator that share one")
    return wanted or common[0]


def _check_sampling(profile: Profile, descriptors: Descriptors) -> None:
    train, validation = profile.sampling, profile.validation.sampling or profile.sampling
    if reshaped := sorted(_deviating(train) - {"temperature"}):
        raise PlanError(f"sampling.{reshaped[0]}: training samples from the whole distribution, so that generator and "
                        "trainer share one support; only the temperature may change",
                        hint="set it under validation.sampling")
    for role in (Role.GENERATOR, Role.AGENT):
        plugin = descriptors[role]
        honoured = plugin.capabilities.sampling
        if role is Role.AGENT and not honoured:
            continue
        for section, settings in (("sampling", train), ("validation.sampling", validation)):
            for name in sorted(_deviating(settings) - honoured):
                raise PlanError(f"{section}.{name}: {role.value} {plugin.name!r} does not honour {name} "
                                f"{getattr(settings, name)}; it honours {_list(honoured)}")


def _deviating(settings: SamplingSettings) -> set[str]:
    neutral = SamplingSettings()
    return {name for name in _SAMPLED if getattr(settings, name) != getattr(neutral, name)}


def _check_refit_mode(profile: Profile, generator: Plugin) -> None:
    mode = profile.schedule.in_flight
    if profile.schedule.mode == "async" and mode not in generator.capabilities.refit:
        raise PlanError(f"schedule.in_flight: generator {generator.name!r} cannot {mode!r} running rollouts at a "
                        f"refit; it can {_list(generator.capabilities.refit)}")


def _check_splits(profile: Profile, environment: Plugin) -> None:
    splits = environment.capabilities.splits
    for key, split in (("grpo.split", profile.grpo.split), ("validation.split", profile.validation.split)):
        if split not in splits:
            raise PlanError(f"{key}: environment {environment.name!r} has no split {split!r}{choices(split, splits)}")


def _check_agent(agent: Plugin, environment: Plugin) -> None:
    offered = environment.capabilities
    for what, needs, has in (("task keys", agent.capabilities.prompt, offered.prompt | {"statement"}),
                             ("sandbox abilities", agent.capabilities.sandbox, offered.sandbox)):
        if needs - has:
            raise PlanError(f"agent {agent.name!r} needs {what} {_list(needs - has)}, which environment "
                            f"{environment.name!r} does not offer; it offers {_list(has)}")
    if agent.capabilities.form == "program" and "spawn" not in offered.sandbox:
        raise PlanError(f"agent {agent.name!r} is a program that runs inside the sandbox, but environment "
                        f"{environment.name!r} cannot spawn one; it offers {_list(offered.sandbox)}")


def _check_determinism(profile: Profile, descriptors: Descriptors) -> None:
    if not profile.deterministic:
        return
    if profile.schedule.mode == "async":
        raise PlanError("deterministic: with schedule.mode = 'async', timing decides which weights sample what",
                        hint="set deterministic = false, or schedule.mode = 'sync'")
    for role in (Role.TRAINER, Role.GENERATOR):
        if not descriptors[role].capabilities.deterministic:
            raise PlanError(f"deterministic: {role.value} {descriptors[role].name!r} does not promise equal results "
                            "for equal seeds", hint="set deterministic = false, or choose another plugin")


def _check_sizes(profile: Profile) -> None:
    context = profile.policy.max_context
    for section, settings in (("sampling", profile.sampling), ("validation.sampling", profile.validation.sampling)):
        if settings is not None and settings.max_tokens >= context:
            raise PlanError(f"{section}.max_tokens: {settings.max_tokens} tokens of one reply leave no room for a "
                            f"prompt in policy.max_context = {context}")
    validation, steps = profile.validation, profile.grpo.max_steps
    last = steps - steps % validation.period
    reached = validation.at_start or validation.at_end or (last > 0 and last >= validation.start_at)
    if validation.metric is not None and not reached:
        raise PlanError(f"validation.metric: no validation takes place within grpo.max_steps = {steps} with period = "
                        f"{validation.period} and start_at = {validation.start_at}, so the target could never be met")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
