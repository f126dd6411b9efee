"""What a page is made of, without a simulation: a plan, a model, runs, changes, a sweep, a comparison; and a reader of
pages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from random import Random

from grpo_bench.registry import Plan, resolve, survey
from grpo_bench_sim.figures import Compared
from grpo_bench_sim.laws import Linear, Lognormal
from grpo_bench_sim.model import Model, Quantity, Rollouts, Stalls
from grpo_bench_sim.page import page
from grpo_bench_sim.reading import RunTimes, StepTimes
from grpo_bench_sim.simulation import Simulation
from grpo_bench_sim.standing import Scenario
from grpo_bench_sim.statuses import Standing
from grpo_bench_sim.sweep import Point, Sweep
from grpo_bench_sim.variants import Variant
from grpo_bench_sim.what_if import Change

COUNTS = 18
VOID = {"meta", "wbr", "br"}
CLOSED = {"line", "rect", "path", "circle"}
HOSTILE = "<script>alert('x')</script>&\"'"


@cache
def plan_of(*overrides: str, profile: str = "gb300-256") -> Plan:
    return survey(resolve(profile, overrides=overrides), 0)


def model_like(**changes) -> Model:
    """One whose rollouts take 100 s, updates 40 s, log-probabilities 10 s and refits 5 s, each time."""
    rollouts = Rollouts(seconds=Lognormal(median=100.0), tokens=Lognormal(median=50.0))
    known = {
        "name": "even", "source": "runs that never took place", "method": "by hand", "date": "2026-01-01",
        "like": {"trainer.workers": 64, "generator.workers": 24, "generator.tensor_parallel": 8}, "needs": {},
        "reads": {"ranks": "trainer.workers", "engines": "generator.workers", "timeout_s": "agent.agent_timeout_s",
                  "engine_gpus": "generator.tensor_parallel", "policy_nodes": "hardware.policy_nodes"},
        "load": 6.4, "rows": (16, 512), "passes_after": {"256": 4608}, "start": Lognormal(median=30.0),
        "train": (rollouts,), "validation": (rollouts,), "log_probabilities": Linear(fixed=10.0),
        "update": Linear(fixed=40.0), "refit": Lognormal(median=5.0), "stalls": Stalls(order=(0.0, 60.0), block=2),
        "assumed": {"assumptions.load_requests": "no run had another load", "train.shares": "one total was logged"},
    }
    return Model.model_validate({**known, **changes})


def run_of(seed: int = 0, steps: int = 30, counts: int | None = COUNTS) -> RunTimes:
    """A run of ``steps`` steps that meets the target with the update of ``counts``."""
    random, found, ledger, counted = Random(seed), [], {"startup": 415.0}, {}
    for step in range(1, steps + 1):
        phases = {"rollout": random.uniform(120.0, 300.0) + 400.0 * (step == 6), "log_probabilities": 31.0,
                  "update": 69.0 + 170.0 * (step == 1), "drain": random.uniform(0.0, 60.0), "refit": 15.2}
        found.append(StepTimes(step, sum(phases.values()), phases, 1.4e6, 256))
        for phase, seconds in phases.items():
            ledger[phase] = ledger.get(phase, 0.0) + seconds
        if step == counts:
            counted = {phase: seconds for phase, seconds in ledger.items() if phase != "startup"}
    ledger |= {"checkpoint": 148.0 * max(0, steps - COUNTS + 1)}
    return RunTimes("trained", 415.0, tuple(found), (), ((COUNTS, 148.0),), ledger, sum(ledger.values()),
                    sum(counted.values()) or None, counted)


def simulation_of(replicas: int = 3, *, name: str = "gb300-256", scenario: Scenario | None = None,
                  counts: int | None = COUNTS, plan: Plan | None = None, steps: int = 30, **model) -> Simulation:
    return Simulation(replace(plan or plan_of(), name=name), model_like(**model), scenario or Scenario(), counts,
                      tuple(run_of(seed, steps, counts) for seed in range(replicas)), ())


def changes_of(name: str = "max age 2") -> list[Change]:
    def variant(text: str) -> Variant:
        return Variant(text, (), Scenario())

    return [
        Change(variant("as it is, seed 1"), 153.6, 264.1, 0.0),
        Change(variant(name), 131.2, 240.5, -22.4, {"rollout": -25.0, "drain": 2.6}),
        Change(variant("agent's time-out of 900 s"), 150.0, 260.0, -3.6, {"rollout": -3.6},
               forbidden=("agent.agent_timeout_s: 900; the rules want at least 1800",)),
        Change(variant("half the concurrency: 128 rollouts"), 193.7, 320.0, 40.1, {"rollout": 40.1},
               because=("rollout: limits.concurrency is 8, not 16; assumed: no run had another load",)),
        Change(variant("checkpoints written 4 times as fast"), 153.6, 240.0, 0.0, {}),
        Change(variant("32 GPUs to train, 224 to generate"), refused="trainer.workers = 32 cannot be divided by 64"),
    ]


def sweep_of(key: str = "schedule.max_age", values: tuple[str, ...] = ("1", "2", "4", "8")) -> Sweep:
    whole = simulation_of()
    points = [Point(value, replace(whole, runs=tuple(run_of(10 * index + seed) for seed in range(3))))
              for index, value in enumerate(values)]
    return Sweep(key, (*points, Point("16", None, "more rollouts failed than the profile allows")))


def comparison_of(name: str = "step") -> list[Compared]:
    random = Random(1)
    return [Compared(batch, quantity, "s", tuple(random.lognormvariate(5.8, 0.3) for _ in range(48)),
                     tuple(random.lognormvariate(5.85, 0.3) for _ in range(96)), 0.1)
            for batch in (256, 512) for quantity in (name, "exposed generation")]


STANDINGS = (Standing(Quantity.UPDATE, "calibrated"),
             Standing(Quantity.ROLLOUT, "extrapolated", "schedule.in_flight is drain, not keep", ("one was logged",)),
             Standing(Quantity.CHECKPOINT, "assumed", "none was written"))


class Page(HTMLParser):
    """The elements of a page, checked to be nested; ``texts`` are the words of each element that has an id or class,
    ``labels`` what the pictures say."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        given = {key: value or "" for key, value in attrs}
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.labels += [given["aria-label"]] if "aria-label" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        assert tag in CLOSED and self.open.pop() == tag

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def whole(**others) -> Page:
    given = {"simulation": simulation_of(), "standings": STANDINGS, "changes": changes_of(), "sweep": sweep_of(),
             "comparison": comparison_of()}
    return Page(page(*(given | others).values()))
