"""What recording a run costs: events, a step's trajectories, the report; each beside writing the bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from grpo_bench.contract import (
    End, Event, FinishReason, Group, Kind, Phase, Position, Purpose, TokenSequence, Trajectory, Turn,
)
from grpo_bench.observers import Journal, write_report
from grpo_bench.observers.trajectories import TrajectoryWriter

from . import Result, seconds

_EVENTS = 2000
_ROLLOUTS = 256


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journalled = seconds(lambda: _journal(_fresh(folder)))
        written = (folder / "events.jsonl").read_bytes()
        plain = seconds(lambda: _plain(folder / "plain", written.splitlines(keepends=True)))
        yield Result(f"{_EVENTS} rollout events", journalled, "writing their lines", plain)
        yield Result("the report on them", seconds(lambda: write_report(folder)), "writing their lines", plain)
        group = _group()
        recorded = seconds(lambda: TrajectoryWriter(_fresh(folder)).group_finished(group))
        kept = (folder / "trajectories" / "step-00001.jsonl").read_bytes()
        plain = seconds(lambda: _plain(folder / "plain", [kept]))
        yield Result(f"{_ROLLOUTS} trajectories of 170 tokens", recorded, f"writing {len(kept) / 1e6:.2f} MB", plain)


def _fresh(folder: Path) -> Path:
    for path in [folder / "events.jsonl", folder / "trajectories" / "step-00001.jsonl"]:
        path.unlink(missing_ok=True)
    return folder


def _journal(folder: Path) -> None:
    journal = Journal(folder)
    journal.write(_event(0, Kind.RUN_STARTED, {
        "run": "r-laptop-0", "profile": "laptop", "seed": 0, "target": 0.5, "metric": "pass_k", "max_steps": 4,
        "prompts_per_step": 16, "generations_per_prompt": 16, "scored": True}))
    journal.write(_event(1, Kind.PHASE, {"phase": Phase.ROLLOUT.value}))
    for seq in range(2, _EVENTS):
        journal.write(_event(seq, Kind.ROLLOUT, {
            "rollout_id": f"t1.{seq}", "group_id": seq, "task_id": "task-0001", "purpose": "train", "end": "completed",
            "cause": None, "message": None, "reward": 1.0, "turns": 5, "sampled_tokens": 40, "versions": [0],
            "durations": {"queue": 0.01, "sandbox_start": 0.004, "generate": 0.9, "environment": 0.2, "score": 0.02},
            "counters": {}, "attempt": 0}))
    journal.close()


def _event(seq: int, kind: Kind, data: dict[str, object]) -> Event:
    return Event(seq, "2026-01-01T00:00:00.000000+00:00", seq / 100, kind.value, 1, data)


def _group() -> Group:
    random = np.random.default_rng(0)
    turns = tuple(Turn(random.integers(0, 640, 28, dtype=np.int32), random.integers(0, 640, 6, dtype=np.int32),
                       -random.random(6, dtype=np.float32), ((6, 0),), FinishReason.STOP, 0.1, 0.02) for _ in range(5))
    rollouts = tuple(Trajectory(f"t1.{index}", 0, "task-0001", Purpose.TRAIN, (TokenSequence(turns),), End.COMPLETED,
                                1.0, durations={"generate": 0.5}) for index in range(_ROLLOUTS))
    return Group(0, "task-0001", Position(0, 0), 0, rollouts)


def _plain(path: Path, parts: list[bytes]) -> None:
    with path.open("wb", buffering=0) as file:
        for part in parts:
            file.write(part)
