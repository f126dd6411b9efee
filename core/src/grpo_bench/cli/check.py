"""``check``: say whether a run is a result, and if not, why. Exit codes: 0 a result, 1 none, 2 no run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import say
from .options import Verbs, run_folder

if TYPE_CHECKING:
    from ..contract import Event, Finding, Role

Judged = tuple[str, "Finding"]
"""Who says so, and what."""

FIGURES = ("metric", "value", "target", "steps", "time_to_target_s")
"""What the last event says that all before it say too."""


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("check", help="say whether a run is a result, and if not, why", description=__doc__)
    parser.add_argument("run", type=run_folder, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    parser.set_defaults(verb=_check)


def _check(arguments: argparse.Namespace) -> int:
    from ..observers import summarise
    folder: Path = arguments.run
    events = _events(folder)
    summary = summarise(events)
    judged = [*_by_the_events(events, summary), *_by_the_plugins(folder, events)]
    result = all(finding.ok for _, finding in judged)
    if arguments.json:
        findings = [{"by": by, "rule": finding.rule, "ok": finding.ok, "message": finding.message}
                    for by, finding in judged]
        print(json.dumps({"run": summary["run"], "result": result, "findings": findings, "summary": summary}))
    else:
        say(f"{'a result' if result else 'not a result'}: {summary['run']}",
            *(f"{'ok' if finding.ok else 'NO'}  {by}: {finding.rule}: {finding.message}" for by, finding in judged))
    return 0 if result else 1


def _events(folder: Path) -> list[Event]:
    from ..contract import Kind, RunFolderError
    from ..observers import read_run
    if not (folder / "events.jsonl").is_file():
        raise RunFolderError(f"{folder} is no run folder: it has no events.jsonl")
    events = list(read_run(folder))
    if not events or events[0].kind != Kind.RUN_STARTED or not events[0].data.keys() >= {"settings", "unscored"}:
        raise RunFolderError(f"{folder} holds no run whose first event says what it is made of",
                             hint="it never started, or an older grpo-bench recorded it")
    return events


def _by_the_events(events: Sequence[Event], summary: Mapping[str, Any]) -> Iterator[Judged]:
    """What no plugin need be asked for."""
    from ..contract import Finding, Kind, Status
    from ..observers import unaccounted
    started, ended = events[0].data, events[-1]
    for reason in started["unscored"]:
        yield "run", Finding("scored", False, reason)
    if not started["unscored"]:
        yield "run", Finding("scored", bool(started["scored"]), "every part is real, and the source is a commit")
    for event in events:
        if event.kind == Kind.RESUMED and (forced := event.data.get("forced")):
            yield "run", Finding("resumed", False, f"attempt {event.data['attempt']} was forced although "
                                                   f"{'; '.join(forced)}")
    if ended.kind != Kind.RUN_ENDED:
        yield "run", Finding("end", False, "the record has no end: the run was cut off, or goes on")
        return
    status = ended.data["status"]
    yield "run", Finding("end", status == Status.TARGET_MET, status.replace("_", " "))
    yield "run", _figures(events)
    missing = unaccounted(summary["ledger"], summary["wall_s"])
    yield "run", Finding("ledger", missing is None, "every second belongs to a phase" if missing is None else
                         f"{missing:.3f} s of {summary['wall_s']:.3f} s belong to no phase")


def _figures(events: Sequence[Event]) -> Finding:
    """Whether the end says what the events before it come to."""
    from ..contract import Finding, Status
    from ..observers import summarise
    said, found = events[-1].data, summarise(events[:-1])
    wrong = [f"{key} {said[key]}, by the events {found[key]}" for key in FIGURES if said[key] != found[key]]
    if said["status"] == Status.TARGET_MET and found["time_to_target_s"] is None:
        wrong.append("a target that no validation met")
    return Finding("figures", not wrong, f"the end says {'; '.join(wrong)}" if wrong else "what the events come to")


def _by_the_plugins(folder: Path, events: Sequence[Event]) -> Iterator[Judged]:
    """The run's ruleset, where it has one, and those who watched it and can vouch for what they wrote."""
    from ..contract import Role, RunFolderError, settings_of
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
    """What one plugin says; one that cannot be asked confirms nothing."""
    from ..contract import Finding, GrpoBenchError
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

    from ..contract import GrpoSettings, Placement, PluginContext, PolicyFacts, Role, load_object
    from ..contract.observers import PROJECT, ObserverHooks
    from ..registry import load_plugin
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

