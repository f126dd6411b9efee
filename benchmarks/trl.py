"""The laptop job in the engine and in TRL's GRPOTrainer, taking turns step by step; both train every sequence.

Takes minutes, so it runs only where it is named: ``make bench ARGS=trl``. TRL gets an environment of its own under the
user's cache, made on first use with the pins of ``trl-requirements.txt``. Two processes of one thread on either side;
same weights, tasks, sandboxes, limits. The first steps of both do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import grpo_bench
import grpo_bench_agent_toolcall
import grpo_bench_env_minirepair
import grpo_bench_policy_minirepair

from ._job import GENERATIONS, PROMPTS, Measured, cpu_seconds

ON_REQUEST = True
_STEPS, _WARM_UP = 7, 2
_RANKS = 2
_PINS = Path(__file__).with_name("trl-requirements.txt")
_CHECKPOINT = Path(grpo_bench_policy_minirepair.__path__[0], "base")
_SHARED = (grpo_bench, grpo_bench_agent_toolcall, grpo_bench_env_minirepair)
"""What TRL's side needs of ours; its interpreter finds it where it stands."""


class _Side:
    """Processes that take a step when the first of them is asked. They end with ``stack``."""

    def __init__(self, stack: ExitStack, commands: list[tuple[list[str], dict[str, str]]]) -> None:
        self._processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
                           for command, env in commands]
        self.steps: list[Measured] = []
        for process in self._processes:
            for call in (process.wait, process.terminate, process.stdin.close if process.stdin else process.poll):
                stack.callback(call)  # the last one first
        self._answer()

    def step(self) -> None:
        asked = self._processes[0].stdin
        assert asked is not None
        before = self._cpu()
        asked.write("step\n")
        asked.flush()
        answer = json.loads(self._answer())
        self.steps.append(Measured(cpu=self._cpu() - before, **answer))

    def _cpu(self) -> float:
        return cpu_seconds(process.pid for process in self._processes)

    def _answer(self) -> str:
        first = self._processes[0]
        line = first.stdout.readline() if first.stdout else ""
        if not line:
            raise RuntimeError(f"{first.args} ended with code {first.wait()}")
        return line


def run() -> Iterator[str]:
    python = _environment()
    base = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with ExitStack() as stack:
        ours = _Side(stack, [([sys.executable, "-m", "benchmarks._our_side", str(_STEPS)], base)])
        theirs = _Side(stack, _trl(python, base))
        for number in range(1, _STEPS + 1):
            theirs.step()
            ours.step()
            print(f"step {number} of {_STEPS}: {ours.steps[-1]} beside {theirs.steps[-1]}", file=sys.stderr, flush=True)
    mine, other = ours.steps[_WARM_UP:], theirs.steps[_WARM_UP:]
    yield f"{PROMPTS} prompts x {GENERATIONS}, {len(mine)} steps of each, alternating; medians (min-max)"
    yield f"{'':<12}{'s/step':>22}{'s of CPU':>22}  replies  trained  reward"
    yield _line("grpo-bench", mine)
    yield _line("TRL", other)
    for what, of in (("time", lambda step: step.seconds), ("CPU", lambda step: step.cpu),
                     ("time per reply", lambda step: step.seconds / step.turns)):
        ratios = [of(b) / of(a) for a, b in zip(mine, other, strict=True)]
        yield f"TRL takes {_spread(ratios)} times the {what}"


def _line(name: str, steps: list[Measured]) -> str:
    return (f"{name:<12}{_spread([step.seconds for step in steps]):>22}{_spread([step.cpu for step in steps]):>22}"
            f"{median(step.turns for step in steps):>9.0f}{median(step.trained for step in steps):>9.0f}"
            f"{median(step.reward for step in steps):>8.2f}")


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _trl(python: Path, base: dict[str, str]) -> list[tuple[list[str], dict[str, str]]]:
    """Command and environment of each of TRL's ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = [str(Path(package.__path__[0]).parent) for package in _SHARED]
    common = {**base, "PYTHONPATH": os.pathsep.join(paths), "WORLD_SIZE": str(_RANKS), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": port, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "PYTHONWARNINGS": "ignore",
              "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [str(python), "-m", "benchmarks._trl_side", str(_CHECKPOINT), str(_STEPS)]
    return [(command, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(_RANKS)]


def _environment() -> Path:
    """The interpreter of TRL's environment, made where its pins are new."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-bench"
    folder = cache / f"trl-{hashlib.sha256(_PINS.read_bytes()).hexdigest()[:12]}"
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        print(f"making an environment for TRL in {folder} (minutes, once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        index = ["--extra-index-url", url] if (url := os.environ.get("TORCH_INDEX")) else []
        subprocess.run([python, "-m", "pip", "install", "-qq", *index, "-r", _PINS], check=True)
        done.touch()
    return python
