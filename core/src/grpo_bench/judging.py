"""Whether something is a result, and each reason why it is none.

A run folder is judged by what its events say, by the run's ruleset, and by those observers that vouch for what they
wrote; a simulation, which is never one, only by its events. Anything else, such as a log or a submission, is shown to
every installed ruleset that judges paths. A plugin that cannot be asked confirms nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contract import (
    Event, Finding, GrpoBenchError, GrpoSettings, Kind, Placement, PlanError, Plugin, PluginContext, PolicyFacts, Role,
    RunFolderError, Status, divided, load_object, settings_of,
)
from .contract.observers import PROJECT, ObserverHooks
from .engine.coherence import faults, unscored_by
from .observers import read_run, summarise, unaccounted
from .registry import installed_plugins, load_plugin

JOURNAL = "events.jsonl"
FIGURES = ("metric", "value", "target", "steps", "time_to_target_s")
"""What the last event says that all before it say too."""
_MADE_OF = {"settings", "parts", "unscored"}
_SHOWN = 8
Judged = tuple[str, Finding]
"""Who says so, and what."""


@dataclass(frozen=True)
class Verdict:
    """What was found out about ``path``. ``run``, ``summary`` and ``events`` (the training's, then the evaluation's)
    are those of a run folder, and empty for anything else."""

    path: Path
    findings: tuple[Judged, ...]
    run: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()

    @property
    def result(self) -> bool:
        """Whether nothing speaks against it."""
        return all(finding.ok for _, finding in self.findings)


def judge(path: Path) -> Verdict:
    """The verdict on whatever ``path`` is; RunFolderError where it is nothing that anybody knows."""
    if (path / JOURNAL).is_file():
        return judge_run(path)
    if not path.exists():
        raise RunFolderError(f"{path} does not exist, so it is no run folder", hint="give what is to be checked")
    _look(path)
    asked, unusable, findings = [], [], []
    for name, descriptor in _rulesets():
        if isinstance(descriptor, PlanError):
            unusable.append(f"ruleset {name} cannot be asked: {descriptor.message}")
        elif descriptor.judge is not None:
            asked.append(name)
            findings += [(f"ruleset {name}", finding) for finding in _shown_to(descriptor, descriptor.judge, path)]
    if not findings:
        asked_text = f"no ruleset that judges files knows it (asked: {', '.join(asked) or 'none is installed'})"
        raise RunFolderError(f"{path} is no run folder: it has no {JOURNAL}; {'; '.join([asked_text, *unusable])}",
                             hint="give a run folder, or a log or submission of an installed ruleset")
    return Verdict(path, tuple(findings))


def _look(path: Path) -> None:
    """RunFolderError for what has no content that a ruleset could read."""
    if path.is_dir():
        return
    if not path.is_file():
        raise RunFolderError(f"{path} is neither a folder nor a file, so it is no run folder",
                             hint="give a run folder, or a log or submission of an installed ruleset")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise RunFolderError(f"{path} is no run folder, and cannot be read: {error.strerror}",
                             hint="give a run folder, or a log or submission of an installed ruleset") from error


def judge_run(folder: Path) -> Verdict:
    """The verdict on a run folder; RunFolderError where it holds no run that can be judged."""
    events = _events(folder)
    summary = summarise(events)
    asked = () if events[0].data.get("modelled") else _by_the_plugins(folder, events)
    findings = (*_by_the_events(folder, events, summary), *asked)
    return Verdict(folder, findings, summary["run"], summary, events)


def _rulesets() -> Iterator[tuple[str, Plugin | PlanError]]:
    """Every installed ruleset, or why it cannot be had."""
    installed = installed_plugins()
    for name in dict.fromkeys(plugin.name for plugin in installed if plugin.role == Role.RULESET):
        try:
            yield name, load_plugin(Role.RULESET, name, installed)[0]
        except PlanError as error:
            yield name, error


def _shown_to(descriptor: Plugin, judge: str, path: Path) -> Sequence[Finding]:
    """What one ruleset says about a path; nothing where it does not know such a thing."""
    try:
        return load_object(judge)(path) or ()
    except GrpoBenchError as error:
        return (Finding("asked", False, f"cannot be asked: {error.message}"),)
    except Exception as error:
        return (Finding("asked", False, f"{descriptor.name} cannot be asked: {type(error).__name__}: {error}"),)


def _events(folder: Path) -> list[Event]:
    if not (folder / JOURNAL).is_file():
        raise RunFolderError(f"{folder} is no run folder: it has no {JOURNAL}")
    events = list(read_run(folder))
    begun = [event.data.keys() for event in events if event.kind in (Kind.RUN_STARTED, Kind.EVALUATION_STARTED)]
    if not begun or not all(keys >= _MADE_OF for keys in begun):
        raise RunFolderError(f"{folder} holds no run whose first event says what it is made of",
                             hint="it never started, or an older grpo-bench recorded it")
    return events


def _by_the_events(folder: Path, events: Sequence[Event], summary: Mapping[str, Any]) -> Iterator[Judged]:
    """What no plugin need be asked for."""
    _, evaluation = divided(events)
    begun = [events[0].data, *(event.data for event in evaluation[:1])]
    unscored = unscored_by(folder, events)
    for reason in unscored:
        yield "run", Finding("scored", False, reason)
    if not unscored:
        yield "run", Finding("scored", all(data["scored"] for data in begun),
                             "every part is real, and the source is a commit")
    for event in events:
        if event.kind == Kind.RESUMED and (forced := event.data.get("forced")):
            yield "run", Finding("resumed", False, f"attempt {event.data['attempt']} was forced although "
                                                   f"{'; '.join(forced)}")
    wrong = list(faults(folder, events))
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    yield "run", Finding("record", not wrong, f"{'; '.join(wrong[:_SHOWN])}{more}" if wrong else "agrees with itself")
    if events[-1].kind != Kind.RUN_ENDED:
        part = "evaluation" if evaluation else "run"
        yield "run", Finding("end", False, f"the record has no end: the {part} was cut off, or goes on")
        return
    yield "run", _end(folder, events[-1], simulated=bool(begun[0].get("modelled")))
    yield "run", _figures(events)
    missing = unaccounted(summary["ledger"], summary["wall_s"])
    yield "run", Finding("ledger", missing is None, "every second belongs to a phase" if missing is None else
                         f"{missing:.3f} s of {summary['wall_s']:.3f} s belong to no phase")


def _end(folder: Path, ended: Event, *, simulated: bool) -> Finding:
    status = ended.data["status"]
    if simulated:
        return Finding("end", False, f"{status.replace('_', ' ')}, in a simulation")
    if status == Status.TRAINED:
        return Finding("end", False, "trained, and not evaluated yet", fix=f"grpo-bench eval {folder} evaluates it")
    return Finding("end", status == Status.TARGET_MET, status.replace("_", " "))


def _figures(events: Sequence[Event]) -> Finding:
    """Whether the end says what the events before it come to."""
    said, found = events[-1].data, summarise(events[:-1])
    wrong = [f"{key} {said[key]}, by the events {found[key]}" for key in FIGURES if said[key] != found[key]]
    if said["status"] == Status.TARGET_MET and found["time_to_target_s"] is None:
        wrong.append("a target that no validation met")
    return Finding("figures", not wrong, f"the end says {'; '.join(wrong)}" if wrong else "what the events come to")


def _by_the_plugins(folder: Path, events: Sequence[Event]) -> Iterator[Judged]:
    """The run's ruleset, where it has one, and those who watched it and can vouch for what they wrote."""
    settings = settings_of(events)
    ruleset, observers = settings.get("ruleset"), settings.get("observers")
    sections = [(Role.RULESET, ruleset)] if ruleset is not None else []
    sections += [(Role.OBSERVER, section) for section in (observers if isinstance(observers, list) else [observers])]
    for role, section in sections:
        if not isinstance(section, Mapping) or not isinstance(section.get("use"), str):
            raise RunFolderError(f"{folder}: the settings in its journal do not say which {role.value} it had",
                                 hint="the journal was changed; restore it from a copy")
        for finding in _asked(role, section, settings, folder, events):
            yield f"{role.value} {section['use']}", finding


def _asked(role: Role, section: Mapping[str, Any], settings: Mapping[str, Any], folder: Path,
           events: Sequence[Event]) -> list[Finding]:
    """What one plugin of the run says; one that cannot be asked confirms nothing."""
    try:
        return _answer(role, section, settings, folder, events)
    except GrpoBenchError as error:
        return [Finding("asked", False, f"cannot be asked: {error.message}")]
    except Exception as error:
        return [Finding("asked", False, f"cannot be asked: {type(error).__name__}: {error}")]


def _answer(role: Role, section: Mapping[str, Any], settings: Mapping[str, Any], folder: Path,
            events: Sequence[Event]) -> list[Finding]:
    import pluggy
    import structlog
    descriptor, _ = load_plugin(role, section["use"])
    own = {key: value for key, value in section.items() if key != "use"}
    policy, grpo = settings["policy"], settings.get("grpo") if role == Role.RULESET else None
    nothing: Any = None
    made = load_object(descriptor.factory)(PluginContext(
        config=descriptor.config.model_validate_json(json.dumps(own)), fabric=nothing, placement=Placement(),
        run_folder=folder, policy=PolicyFacts(Path(policy["checkpoint"]), policy["max_context"], 0),
        seed=settings["seed"], deterministic=settings["deterministic"], clock=nothing,
        logger=structlog.get_logger(role=role.value),
        shared={} if grpo is None else {"grpo": GrpoSettings.model_validate_json(json.dumps(grpo))}))
    if role == Role.RULESET:
        return list(made.check_run(folder, events))
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(ObserverHooks)
    manager.register(made)
    return [finding for found in manager.hook.check_run(folder=folder, events=events) for finding in found]
