"""What a simulation found, as one JSON object, and the files that keep it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError
from grpo_bench.observers.kit import write_whole

from .account import Account
from .figures import Compared
from .model import Model
from .page import write_page
from .simulation import Simulation
from .statuses import Standing
from .sweep import Sweep
from .what_if import Change, forbidden

RECORD, PAGE, MODEL = "simulation.json", "simulation.html", "model.json"


@dataclass(frozen=True, slots=True)
class Findings:
    """The replicas under ``seeds`` and all that was made of them. ``failed`` is what of it could not be made, each with
    its reason. ``given_s`` is how long such runs are given, 0 where nobody says."""

    simulation: Simulation
    seeds: Sequence[int]
    account: Account
    standings: tuple[Standing, ...]
    changes: Sequence[Change]
    sweep: Sweep | None
    compared: Sequence[Compared]
    failed: Sequence[str] = ()

    @property
    def given_s(self) -> float:
        estimate = self.simulation.plan.estimate
        return estimate.wall_s if estimate else 0.0

    def to_json(self) -> dict[str, Any]:
        """Seconds, but where a name says otherwise. Nothing in it is a reward, a loss or an accuracy."""
        plan, model, scenario = self.simulation.plan, self.simulation.model, self.simulation.scenario
        return {
            "profile": plan.name, "scored": False, "seeds": list(self.seeds),
            "model": {key: getattr(model, key) for key in ("name", "source", "method", "date")},
            "assumed": dict(model.assumed), "missing": list(plan.missing), "forbidden": list(forbidden(plan)),
            "scenario": {**asdict(scenario), "scales": {key.value: value for key, value in scenario.scales.items()}},
            "target_assumed_at_step": self.simulation.counts,
            "given_s": self.given_s, **self.account.to_json(),
            "standings": [asdict(standing) for standing in self.standings],
            "runs": [{"seed": seed, "folder": str(folder), **asdict(run)} for seed, folder, run in zip(
                self.seeds, self.simulation.folders, self.simulation.runs)],
            "what_if": [_change(change) for change in self.changes],
            "sweep": _sweep(self.sweep), "failed": list(self.failed),
            "held_out": [{**asdict(item), "measured_median": item.measured_median,
                          "simulated_median": item.simulated_median, "deviation": item.deviation}
                         for item in self.compared],
        }


def begin(model: Model, out: Path, *, numbered: bool) -> Path:
    """Take a folder for one simulation, by keeping its model there before anything else: ``out`` or, where another has
    taken that and ``numbered``, its name with a number. InputError where none can be had."""
    for number in count(1):
        folder = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / MODEL).open("x", encoding="utf-8") as file:
                file.write(f"{model.model_dump_json(indent=1)}\n")
            return folder
        except FileExistsError as error:
            if not numbered:
                raise InputError(f"--out {out}: another simulation is in it", hint="name a new folder") from error
        except OSError as error:
            raise InputError(f"--out {folder}: {error.strerror}", hint="name another place") from error
    raise AssertionError("numbers do not end")


def write(found: Findings, out: Path) -> dict[str, Any]:
    """Keep it in ``out``, which has the model already, each file whole or not at all; the object that the record
    holds."""
    write_page(out / PAGE, found.simulation, found.standings, found.changes, found.sweep, found.compared, found.failed)
    record = {**found.to_json(), "page": str(out / PAGE), "model_file": str(out / MODEL)}
    write_whole(out / RECORD, f"{json.dumps(record, allow_nan=False)}\n")
    return record


def _change(change: Change) -> dict[str, Any]:
    """Minutes."""
    return {"name": change.variant.name, "overrides": list(change.variant.overrides), "to_target_min": change.to_target,
            "whole_min": change.whole, "change_min": change.minutes, "moves_min": dict(change.moves),
            "whole_change_min": change.whole_minutes, "whole_moves_min": dict(change.whole_moves), "late": change.late,
            "phase": change.phase, "phase_min": change.phase_minutes, "forbidden": list(change.forbidden),
            "because": list(change.because), "standings": [asdict(standing) for standing in change.standings],
            "note": change.note, "refused": change.refused}


def _sweep(sweep: Sweep | None) -> dict[str, Any] | None:
    """Minutes, each as median, least and most."""
    return sweep and {"key": sweep.key, "points": [
        {"value": point.value, "to_target_min": point.to_target, "whole_min": point.whole,
         "phases_min": dict(point.phases), "because": list(point.because),
         "forbidden": list(point.forbidden), "failed": point.failed}
        for point in sweep.points]}
