"""One multi-turn GRPO job, described once for both sides of the comparison, and how its steps take turns.

Each side is a process that answers a line on stdin with one step and, when the step is over, a line of JSON on stdout;
nothing of it runs while the other side is at work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROFILE = "laptop"
PROMPTS, GENERATIONS = 16, 16
MAX_TURNS, MAX_TOKENS, MAX_CONTEXT = 8, 64, 512
LEARNING_RATE = 1e-5
"""Low, so that the policy, and with it the work of a step, stays what it is."""
TOOLS = ("view", "edit", "test", "submit")


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: seconds, seconds of CPU of all processes, model replies, rollouts that trained, mean reward."""

    seconds: float
    cpu: float
    turns: int
    trained: int
    reward: float


class Turnstile:
    """This side's half: ``go`` waits for the permission to take a step, ``over`` tells what it was like. What the
    libraries print goes to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._since = 0.0

    def go(self) -> None:
        sys.stdin.readline()
        self._since = time.perf_counter()

    def over(self, **found: Any) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self._since, **found}), file=self._answers, flush=True)

    def ready(self) -> None:
        print("{}", file=self._answers, flush=True)


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time of processes and all they started, the ended and waited for included."""
    ticks, children = {}, defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(path.parent.name))
    found, wanted = 0, list(roots)
    while wanted:
        process = wanted.pop()
        found += ticks.get(process, 0)
        wanted += children[process]
    return found / os.sysconf("SC_CLK_TCK")
