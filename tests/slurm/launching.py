"""What ``grpo-bench launch`` submits to a rig, and what is seen of it there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import Any

from grpo_bench.contract import Event, Kind
from grpo_bench.observers import read_run

from .rig import PROGRAMS, Slurm

SITE = '[launch]\npartition = "gpu"\nobject_store_gib = 0.08\nminutes = 60\nstop_s = 60\n'
START_S = 300.0
"""How long a job's nodes of Ray and its workers may take to be up, on two cores that others may use."""


class Launch:
    """A launch of one replica of the profile ``mock``, and what becomes of it."""

    def __init__(self, rig: Slurm, name: str, settings: Mapping[str, object]) -> None:
        self.rig = rig
        site = rig.folder / "site.toml"
        site.write_text(SITE)
        runs = rig.folder / name
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.said = rig.run(PROGRAMS / "grpo-bench", "launch", "--profile", "mock", "--site", site, "--runs", runs,
                            *sets).stdout
        (self.folder,) = runs.iterdir()
        self.replica = self.folder / "replica-0"
        self.job = int(json.loads((self.replica / "launch.json").read_text())["jobs"]["train"])

    def nodes_of_workers(self) -> set[str]:
        return {work.node for work in self.rig.working() if "grpo_bench.fabric.worker" in work.line}

    def verb(self, *words: str) -> CompletedProcess[str]:
        return self.rig.run(PROGRAMS / "grpo-bench", "launch", *words, self.folder)

    def events(self) -> list[Event]:
        """Of the one run folder, if there is one yet."""
        found = [file.parent for file in self.replica.glob("*/events.jsonl")]
        assert len(found) < 2
        return list(read_run(found[0])) if found else []

    def of(self, kind: Kind) -> list[Mapping[str, Any]]:
        return [event.data for event in self.events() if event.kind == kind]

    def until_step(self, step: int, patience_s: float = START_S) -> None:
        """Wait while the job goes on until a step is over."""
        def arrived() -> bool:
            state = self.rig.job(self.job)["JobState"]
            assert state in ("PENDING", "RUNNING"), (state, self.verb("logs", "--lines", "100").stdout)
            return any(data["version"] >= step for data in self.of(Kind.STEP))

        self.rig.until(arrived, f"step {step}", patience_s)

    def assert_nothing_left(self) -> None:
        """Of the job: no process on any node, no secret, and no node that is not ready for the next job."""
        self.rig.until(self.rig.all_idle, "all nodes to be idle")
        assert not self.rig.working()
        assert not list(self.replica.glob(".ray-token*"))
