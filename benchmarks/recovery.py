"""How long it takes to survive the loss of each part, on a Ray cluster of four nodes on this machine.

Takes minutes, so it runs only where it is named: ``make bench ARGS=recovery``. A part is killed once a step has begun;
``seen`` is when the run knows, ``back`` when the part works again, ``step`` when the next step ends, each beside the
median step of the same run before that. A host's end is seen as late as the cluster's health checks say, here 3 s.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import median

from grpo_bench.contract import Event, Kind
from tests.children import Child
from tests.raylets import Raylets, placed, seats

from . import Result

ON_REQUEST = True
_PATIENCE_S = 600.0
_MOCK = {"grpo.max_steps": 40, "grpo.prompts_per_step": 8, "grpo.generations_per_prompt": 4, "checkpoint.period": 1,
         "validation.metric": "off", "validation.target": "off", "validation.period": 100, "generator.token_s": 0.01,
         "rollout.workers": 4, "limits.rollout_retries": 5, "limits.engine_restarts": 20}
_LAPTOP = {**_MOCK, "trainer.workers": 2, "generator.use": "mock", "validation.at_start": "false", "rollout.workers": 2,
           "limits.trainer_restarts": 5}


@dataclass(frozen=True, slots=True)
class Survived:
    """Seconds from the kill on."""

    what: str
    step: float
    seen: float
    back: float
    on: float

    def results(self) -> Iterator[Result]:
        for name, seconds in (("seen", self.seen), ("back", self.back), ("step", self.on)):
            yield Result(f"{self.what}: {name}", seconds, "a step", self.step)


def run() -> Iterator[Result]:
    raylets = Raylets({"n0": "d0", "n1": "d0", "n2": "d1", "n3": "d1"})
    os.environ.update(raylets.environment)
    try:
        for lost in chain(_parts(raylets), _trainers(raylets), _driver()):
            yield from lost.results()
    finally:
        raylets.close()
        for name in raylets.environment:
            del os.environ[name]


def _parts(raylets: Raylets) -> Iterator[Survived]:
    """Engines and rollout workers, their processes and their hosts."""
    with _started(_MOCK, "mock", "n0", "n1", "n2", "n3", policy_nodes=2, generation_nodes=2) as child:
        yield _survived(child, "a rollout worker's process", "worker_lost", lambda: _end(child, "rollout-0"))
        yield _survived(child, "an engine's process", "engine_lost", lambda: _end(child, "generator-0"))
        yield _survived(child, "a rollout worker's host", "worker_lost", lambda: raylets.kill("n1"))
        yield _survived(child, "an engine's host", "engine_lost", lambda: raylets.kill("n3"))
    raylets.add("n1")
    raylets.add("n3")


def _trainers(raylets: Raylets) -> Iterator[Survived]:
    """A rank of the trainer, its process and its host: the run goes on by itself from its last checkpoint."""
    with _started(_LAPTOP, "laptop", "n3", "n2", "n1", "n0", policy_nodes=1, generation_nodes=2, spare=1) as child:
        yield _survived(child, "a trainer's process", "trainer_lost", lambda: _end(child, "trainer-1"))
        yield _survived(child, "a trainer's host", "trainer_lost", lambda: raylets.kill("n3"))
    raylets.add("n3")


def _driver() -> Iterator[Survived]:
    """The engine's own process; whoever sees that resumes the run at once."""
    with _started(_MOCK, "mock", "n0", "n1", "n2", "n3", policy_nodes=2, generation_nodes=2) as child:
        _until_steps(child, 3)
        usual, killed = _usual(child), datetime.now(UTC)
        child.process.kill()
        child.process.communicate()
        folder = child.folder.parents[1]
        resumed = Child(folder, {}, "", verb=("resume", str(child.folder)), runs=child.runs)
        try:
            _until_steps(resumed, 1)
            first = next(event for event in resumed.recorded() if event.step is not None)
            yield Survived("the driver", usual, 0.0, _after(first, killed), _after(_steps(resumed)[0], killed))
        finally:
            _leave(resumed)


@contextmanager
def _started(settings: Mapping[str, object], profile: str, *order: str, **hardware: int) -> Iterator[Child]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        child = Child(folder, {**settings, **placed(folder, *order, **hardware)}, profile)
        try:
            yield child
        finally:
            _leave(child)


def _leave(child: Child) -> None:
    if child.process.poll() is None:
        child.process.send_signal(signal.SIGTERM)
    child.process.communicate()


def _survived(child: Child, what: str, alarm: str, kill: Callable[[], None]) -> Survived:
    """Kill once three more steps are over, and wait until one is after the run has said that the part is back."""
    _until_steps(child, len(_steps(child)) + 3)
    usual, known, killed = _usual(child), len(child.recorded()), datetime.now(UTC)
    kill()
    child.until(lambda: any(event.data.get("name") == alarm for event in child.recorded()[known:]), _PATIENCE_S)
    news = child.recorded()[known:]
    said = next(event for event in news if event.data.get("name") == alarm)
    _until_steps(child, len([event for event in _steps(child) if event.seq < said.seq]) + 1)
    news = child.recorded()[known:]
    later = [event for event in news if event.seq > said.seq]
    back = said if "seconds" in said.data else next(event for event in later if event.step is not None)
    began = _after(said, killed) - said.data.get("seconds", 0.0)
    signs = [_after(event, killed) for event in news if event.kind == Kind.ERROR or event.data.get("cause")]
    step = next(event for event in later if event.kind == Kind.STEP)
    return Survived(what, usual, min([began, *signs]), _after(back, killed), _after(step, killed))


def _end(child: Child, seat: str) -> None:
    os.kill(seats(child)[seat][-1].pid, signal.SIGKILL)


def _steps(child: Child) -> list[Event]:
    return [event for event in child.recorded() if event.kind == Kind.STEP]


def _usual(child: Child) -> float:
    return median(event.data["seconds"] for event in _steps(child))


def _until_steps(child: Child, steps: int) -> None:
    child.until(lambda: len(_steps(child)) >= steps, _PATIENCE_S)


def _after(event: Event, killed: datetime) -> float:
    return (datetime.fromisoformat(event.at) - killed).total_seconds()
