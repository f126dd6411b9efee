"""Makes the packaged model of the benchmark's reference, ``qwen35_397b_gb300.json``, out of its public logs.

The folder holds ``rcp_steps.csv``, ``rcp_evals.csv`` and ``rcp_runs.csv``. Replicas 1 to 3 of each batch are fitted;
the others are only kept in the model, so that simulations can be compared with them. It simulates some fifty runs and
some seventy validations, which takes about five minutes.

    python plugins/sim/tools/fit_reference.py ../shared/mlperf [--out FILE] [--date DATE]
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from reference_facts import (
    ASSUMED, ASSUMPTIONS, METHOD, NEEDS, PASSES_AFTER, READS, SHARES, SOURCE, UNTIMED,
)
from reference_logs import LoggedStep, Replica, measured, read_logs
from reference_waits import Run, Waits, fitted, logged, order_spread, sudden, validated

from grpo_bench.contract import InputError
from grpo_bench.registry import resolve, survey
from grpo_bench_sim.calibrate import flat
from grpo_bench_sim.evaluating import validations
from grpo_bench_sim.fitting import linear
from grpo_bench_sim.laws import Linear, Lognormal
from grpo_bench_sim.model import BATCH, First, Model, Rollouts, Stalls
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario

OUT = Path(__file__).parent.parent / "src" / "grpo_bench_sim" / "models" / "qwen35_397b_gb300.json"
PROFILE = "gb300-256"
FITTED = (1, 2, 3)
GENERATIONS, AT_ONCE, ENGINES, TURNS = 16, 256, 24, 1
ROUNDS, SEEDS = 12, 2
VALIDATING_ROUNDS, VALIDATING_SEEDS = 3, range(2000, 2024)


def conditions(batch: int) -> tuple[str, ...]:
    """What the logs ran under: a refit waits for the prompts in flight; what times out is no sample, and never tried
    again; 256 tasks are validated while the run goes on."""
    return (f"grpo.prompts_per_step={batch // GENERATIONS}", "schedule.in_flight=drain", "validation.deferred=false",
            "validation.max_tasks=256", "limits.rollout_retries=0", "limits.max_failed_share=0.5")


def plan_of(batch: int) -> Any:
    return survey(resolve(PROFILE, overrides=conditions(batch), cwd=Path.cwd()), 0)


def model_of(replicas: Sequence[Replica], run_of: Callable[[Model], Run] | None = None,
             validate: Callable[[Model], Sequence[float]] | None = None, *, day: str, rounds: int = ROUNDS,
             seeds: int = SEEDS) -> Model:
    """The model; ``run_of(model)`` makes what simulates under a changed one, and ``validate(model)`` is what its
    validations take (by default the engine's answer)."""
    batches = sorted({replica.batch for replica in replicas})
    by_batch = {batch: [replica for replica in replicas if replica.batch == batch and replica.number in FITTED]
                for batch in batches}
    held = {batch: [replica for replica in replicas if replica.batch == batch and replica.number not in FITTED]
            for batch in batches}
    chosen = [replica for replica in replicas if replica.number in FITTED]
    start = measured_laws(chosen, day)
    run = (run_of or engine)(start)
    waits = fitted({batch: logged(found) for batch, found in by_batch.items()}, run, rounds, seeds)
    rolled = partial(validating, with_waits(start, waits))
    seconds = validated([replica.validation for replica in chosen],
                        lambda seconds: (validate or engine_validates)(rolled(seconds)), waits, VALIDATING_ROUNDS)
    kept = [measured(found, held_out=out) for batch in batches
            for found, out in ((by_batch[batch], False), (held[batch], True)) if found]
    return rolled(seconds).model_copy(update={"measured": tuple(kept)})


def engine(model: Model) -> Run:
    plans = {int(batch): plan_of(int(batch)) for batch in model.conditions}
    return lambda waits, batch, seeds: simulate(plans[batch], with_waits(model, waits), Scenario(), seeds, None).runs


def engine_validates(model: Model) -> Sequence[float]:
    return validations(plan_of(min(map(int, model.conditions))), model, Scenario(), VALIDATING_SEEDS)


def validating(model: Model, seconds: float) -> Model:
    """With rollouts of validations that are so long, and differ as those of training do."""
    law = model.train[0].seconds.model_copy(update={"median": round(seconds, 1)})
    return model.model_copy(update={"validation": (model.validation[0].model_copy(update={"seconds": law}),)})


def with_waits(model: Model, waits: Waits) -> Model:
    seconds = Lognormal(median=round(waits.seconds, 1), sigma=round(waits.sigma, 3))
    rollouts = (model.train[0].model_copy(update={"seconds": seconds}),)
    first = model.first.model_copy(update={"rollout": round(waits.first, 1)})
    stalls = model.stalls.model_copy(update={
        "order": tuple(round(stall, 1) for stall in waits.order), "paired": waits.paired})
    return model.model_copy(update={"train": rollouts, "validation": rollouts, "first": first, "stalls": stalls})


def measured_laws(replicas: Sequence[Replica], day: str) -> Model:
    """All that the logs have as durations of its own; what is waited for is still missing."""
    by_batch = {batch: [replica for replica in replicas if replica.batch == batch]
                for batch in sorted({replica.batch for replica in replicas})}
    firsts = [(replica.batch, replica.steps[0]) for replica in replicas]
    steps = [(replica.batch, step) for replica in replicas for step in replica.steps[1:]]
    settings = flat(plan_of(min(by_batch)).resolved)
    needs = {quantity: tuple(key for key in settings if needed(key, names)) for quantity, names in NEEDS.items()}
    known = {*READS.values(), *chain.from_iterable(needs.values())} - BATCH
    share, stalled = sudden(by_batch)
    rest, update = law(steps, "rest"), law(steps, "update")
    rollouts = (Rollouts(seconds=Lognormal(median=0.0), tokens=tokens(by_batch), shares=SHARES, turns=TURNS),)
    return Model(
        name="qwen35-397b-gb300", date=day, source=SOURCE, method=METHOD,
        like={key: value for key, value in settings.items() if key in known}, reads=READS, needs=needs,
        load=AT_ONCE * SHARES.generate / ENGINES, rows=(min(by_batch), max(by_batch)), passes_after=PASSES_AFTER,
        start=lognormal([replica.start for replica in replicas]),
        first=First(log_probabilities=beyond(rest, firsts, "rest"), update=beyond(update, firsts, "update")),
        train=rollouts, validation=rollouts,
        stalls=Stalls(block=min(by_batch) // GENERATIONS, spread=round(order_spread(by_batch), 3),
                      sudden_share=float(f"{share:.3g}"), sudden=lognormal(stalled or [0.0])),
        log_probabilities=rest, update=update, driver=law(steps, "outside"),
        refit=lognormal([step.refit for _, step in steps]),
        assumptions=ASSUMPTIONS, assumed=ASSUMED, conditions={str(batch): conditions(batch) for batch in by_batch})


def needed(key: str, names: Sequence[str]) -> bool:
    """Whether a setting is among ``names``, or in a section of which one is the beginning and not ``UNTIMED``."""
    sections = tuple(name for name in names if name.endswith("."))
    return key in names or (key.startswith(sections) and key not in UNTIMED)


def law(steps: Sequence[tuple[int, LoggedStep]], name: str) -> Linear:
    """Least squares over steps of all batches, each with its number of rollouts."""
    found = linear([rows for rows, _ in steps], [step.tokens for _, step in steps],
                   [getattr(step, name) for _, step in steps])
    return Linear(**{field: float(f"{value:.4g}") for field, value in found})


def beyond(usual: Linear, firsts: Sequence[tuple[int, LoggedStep]], name: str) -> float:
    """What first steps took longer, in the median."""
    return round(median(getattr(step, name) - usual.middle(rows, step.tokens) for rows, step in firsts), 1)


def lognormal(values: Sequence[float]) -> Lognormal:
    """The median, and half of what the middle 68 % of the logarithms span."""
    if not min(values) > 0:
        return Lognormal(median=median(values))
    low, high = np.quantile(np.log(values), [0.16, 0.84])
    return Lognormal(median=round(median(values), 2), sigma=round(float(high - low) / 2, 4))


def tokens(replicas: Mapping[int, Sequence[Replica]]) -> Lognormal:
    """Of one rollout, valid or not. How much they differ is told by how much the sum of a step does between replicas,
    as if rollouts had nothing to do with each other."""
    each, spreads = [], []
    for batch, found in replicas.items():
        sums = np.array([[step.tokens for step in replica.steps] for replica in found])
        each.append(sums.mean() / batch)
        spreads += list(sums.std(axis=0, ddof=1) / sums.mean(axis=0) * math.sqrt(batch))
    sigma = math.sqrt(math.log(1 + float(np.median(spreads)) ** 2))
    return Lognormal(median=round(fmean(each) * math.exp(-sigma**2 / 2), 1), sigma=round(sigma, 3))


def text_of(model: Model) -> str:
    """As JSON, with each list of plain values on a line of its own."""
    text = json.dumps(model.model_dump(mode="json", exclude_none=True), indent=2)
    lists = re.compile(r"\[[^\[\]{}]*\]")
    return lists.sub(lambda found: json.dumps(json.loads(found.group())), text) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--date", default=date.today().isoformat())
    given = parser.parse_args(arguments)
    try:
        replicas = read_logs(given.folder)
    except InputError as error:
        parser.error(error.message)
    model = model_of(replicas, day=given.date)
    given.out.write_text(text_of(model), encoding="utf-8")


if __name__ == "__main__":
    main()
