"""A few steps of the laptop profile, with a checkpoint after each, for benchmarks that read what a run records."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS = 4


@contextmanager
def short_run() -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The run's folder, until the block ends, and its events."""
    with tempfile.TemporaryDirectory() as runs:
        settings = (f"grpo.max_steps={STEPS}", f"validation.period={STEPS}", "validation.at_start=false",
                    "validation.target=1.0", "checkpoint.period=1")
        command = [sys.executable, "-m", "grpo_bench", "run", "--profile", "laptop", "--runs", runs, "--json"]
        subprocess.run([*command, *(part for setting in settings for part in ("--set", setting))],
                       stdout=subprocess.DEVNULL, check=False)  # a target of 1.0 is missed
        (journal,) = Path(runs).glob("*/events.jsonl")
        yield journal.parent, [json.loads(line) for line in journal.read_text().splitlines()]
