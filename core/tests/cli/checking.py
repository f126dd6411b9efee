"""Run folders that hold no more than a journal or two, and what ``check`` says about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import Event, Kind, Phase
from grpo_bench.engine.folder import software_sha256
from grpo_bench.observers.journal import encode

SETTINGS = {"policy": {"checkpoint": "nowhere", "max_context": 64}, "seed": 1, "deterministic": False, "ruleset": None,
            "observers": []}
SOFTWARE: dict[str, Any] = {"sources": {}}
MADE_OF = {"scored": True, "unscored": [], "settings": SETTINGS, "parts": {},
           "provenance_sha256": software_sha256(SOFTWARE)}
UPDATED = "2026-01-01T00:00:02.500000+00:00"


def record(folder: Path, *, status: str | None = "target_met", wall_s: float = 5.0, forced: Sequence[str] = (),
           said: float | None = 4.0, met: bool = True, **changes: Any) -> Path:
    """A run's folder with a journal of one step and one validation."""
    started = {"run": folder.name, "profile": "p", "seed": 1, "target": 0.5, "metric": "pass_k", "max_steps": 2,
               "prompts_per_step": 1, "generations_per_prompt": 2, **MADE_OF, **changes}
    events: list[Event] = []

    def add(kind: Kind, at_s: float, step: int | None = None, **data: Any) -> None:
        events.append(Event(len(events), f"2026-01-01T00:00:0{int(at_s)}+00:00", at_s, kind.value, step, data))

    add(Kind.RUN_STARTED, 0.0, **started)
    add(Kind.PHASE, 0.0, phase=Phase.STARTUP.value)
    if forced:
        add(Kind.RESUMED, 0.0, from_step=0, from_seq=1, attempt=2, forced=list(forced),
            provenance_sha256=MADE_OF["provenance_sha256"])
        keep(folder / "provenance-2.json", SOFTWARE)
    add(Kind.PHASE, 1.0, 1, phase=Phase.ROLLOUT.value)
    add(Kind.STEP, 3.0, 1, version=1, seconds=2.0, reward_mean=0.5, rollouts=2, sampled_tokens=9)
    add(Kind.VALIDATION, 4.0, 1, version=1, k=2, tasks=2, passed=2, metrics={"pass_k": 1.0, "accuracy": 1.0},
        standard_error=0.0, seconds=1.0, ends={"completed": 4}, target_met=met)
    if status is not None:
        add(Kind.RUN_ENDED, 5.0, status=status, metric="pass_k", value=1.0, target=0.5, steps=1, time_to_target_s=said,
            wall_s=wall_s, cpu_s=1.0, weights_sha256="0", ledger={"startup": 1.0, "rollout": 4.0})
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(map(encode, events)))
    keep(folder / "profile.json", started["settings"])
    keep(folder / "provenance.json", SOFTWARE)
    return folder


def keep(file: Path, value: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value))


def check(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(run), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refusals(verdict: dict[str, Any]) -> list[str]:
    return [f"{item['by']}: {item['rule']}: {item['message']}" for item in verdict["findings"] if not item["ok"]]


def train(folder: Path) -> Path:
    started = {"run": folder.name, "profile": "p", "seed": 1, "target": 0.5, "metric": "pass_k", "max_steps": 2,
               "prompts_per_step": 1, "generations_per_prompt": 2, **MADE_OF}
    events = [
        (Kind.RUN_STARTED, 0.0, None, started), (Kind.PHASE, 0.0, None, {"phase": "startup"}),
        (Kind.PHASE, 1.0, 1, {"phase": "rollout"}), (Kind.PHASE, 2.0, 1, {"phase": "update"}),
        (Kind.UPDATE, 3.0, 1, {"loss": 0.1, "grad_norm": 1.0, "learning_rate": 1.0, "tokens": 9, "ended_at": UPDATED,
                               "metrics": {}}),
        (Kind.STEP, 3.0, 1, {"version": 1, "seconds": 2.0, "reward_mean": 0.5, "rollouts": 2, "sampled_tokens": 9}),
        (Kind.CHECKPOINT, 4.0, 1, {"folder": "weights-00001", "what": "weights", "seconds": 1.0, "bytes": 1,
                                   "updated_at": UPDATED}),
        (Kind.RUN_ENDED, 5.0, None, {
            "status": "trained", "metric": "pass_k", "value": None, "target": 0.5, "steps": 1, "time_to_target_s": None,
            "wall_s": 5.0, "cpu_s": 1.0, "weights_sha256": "0",
            "ledger": {"startup": 1.0, "rollout": 1.0, "update": 3.0}})]
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(encode(Event(
        number, f"2026-01-01T00:00:0{int(at)}+00:00", at, kind.value, step, data))
        for number, (kind, at, step, data) in enumerate(events)))
    keep(folder / "profile.json", SETTINGS)
    keep(folder / "provenance.json", SOFTWARE)
    return folder


def evaluated(folder: Path, *, status: str | None = "target_met", **changes: Any) -> Path:
    """A run that was trained without a validation, and its evaluation; None: that goes on."""
    sha256 = hashlib.sha256((train(folder) / "events.jsonl").read_bytes()).hexdigest()
    started = {"run": folder.name, "training_sha256": sha256,
               "checkpoints": [{"step": 1, "folder": "weights-00001", "updated_at": UPDATED}], "metric": "pass_k",
               "target": 0.5, "k": 2, **MADE_OF, **changes}
    events: list[Event] = []

    def add(kind: Kind, at_s: float, step: int | None = None, **data: Any) -> None:
        events.append(Event(len(events), f"2026-01-01T01:00:0{int(at_s)}+00:00", at_s, kind.value, step, data))

    add(Kind.EVALUATION_STARTED, 0.0, **started)
    add(Kind.PHASE, 0.0, phase=Phase.STARTUP.value)
    add(Kind.PHASE, 1.0, 1, phase=Phase.VALIDATION.value)
    add(Kind.VALIDATION, 4.0, 1, version=1, k=2, tasks=2, passed=2, metrics={"pass_k": 1.0, "accuracy": 1.0},
        standard_error=0.0, seconds=3.0, ends={"completed": 4}, target_met=True)
    if status is not None:
        add(Kind.RUN_ENDED, 5.0, status=status, metric="pass_k", value=1.0, target=0.5, steps=1, time_to_target_s=2.5,
            wall_s=5.0, cpu_s=1.0, weights_sha256=None, ledger={"startup": 1.0, "validation": 4.0})
    keep(folder / "eval" / "provenance.json", SOFTWARE)
    (folder / "eval" / "events.jsonl").write_text("".join(map(encode, events)))
    return folder
