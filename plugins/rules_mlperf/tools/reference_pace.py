"""Makes ``reference_pace.json`` of the package out of what the reference's public logs say.

``reference/runs.csv`` has a row for each of its runs and ``reference/evaluations.csv`` one for each validation, as read
from the logs; times are seconds where a column's name does not say otherwise. Kept are least and most over all runs of
what does not depend on the batch, a run's start and its validation; and for each batch least, mean and most over its
runs of the first step, and of the mean of a run's later steps: these follow each other without a gap up to the
validation, whatever they were spent on.

    python plugins/rules_mlperf/tools/reference_pace.py DATE
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from grpo_bench.registry.outline import read_outline

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "grpo_bench_rules_mlperf"
BYTES_PER_WEIGHT = 2
Row = Mapping[str, str]


def made(runs: Iterable[Row], evaluations: Iterable[Row], weights: int, date: str) -> dict[str, Any]:
    """The content of the file; ``weights`` is the number of the policy's parameters."""
    runs, evaluations = list(runs), list(evaluations)
    batches = sorted({int(row["gbs"]) for row in runs})
    return {
        "source": f"{len(runs)} public logs of MLPerf Training 6.1's reference for qwen35_397b_grpo, "
                  f"{' and '.join(f'{_of(runs, batch)} at batch {batch}' for batch in batches)}",
        "date": date,
        "method": "start and validation: least and most over all runs; first step, and the mean of a run's later "
                  "steps: least, mean and most over the runs of a batch",
        "like": {"policy.config": "package:grpo_bench_rules_mlperf/qwen35_397b_a17b.json", "policy.max_context": 65536,
                 "grpo.generations_per_prompt": 16, "schedule.mode": "async", "agent.max_turns": 30,
                 "trainer.workers": 64, "generator.workers": 24, "generator.tensor_parallel": 8,
                 "hardware.gpu": "GB300"},
        "start_s": _extremes(map(_start, runs)),
        "validation_s": _extremes(float(row["eval_duration_s"]) for row in evaluations),
        "batches": {str(batch): _steps([row for row in runs if row["gbs"] == str(batch)]) for batch in batches},
        "rollouts_of_a_validation": 256 * 4,
        "weights_bytes": weights * BYTES_PER_WEIGHT,
        "assumed_bytes_per_s": [2.5e9, 25e9],
        "wall_s": 240 * 60,
    }


def _steps(runs: Sequence[Row]) -> dict[str, list[float]]:
    found = {"first_step_s": [float(row["first_step_wall_s"]) for row in runs], "step_s": list(map(_later_step, runs))}
    return {name: [round(value, 1) for value in (min(times), mean(times), max(times))] for name, times in found.items()}


def _start(row: Row) -> float:
    return float(row["init_min"]) * 60 + float(row["cache_clear_to_init_start_s"])


def _later_step(row: Row) -> float:
    return (float(row["train_min_to_block_stop"]) * 60 - float(row["first_step_wall_s"])) / (int(row["steps"]) - 1)


def _extremes(times: Iterable[float]) -> list[float]:
    found = [round(time, 1) for time in times]
    return [min(found), max(found)]


def _of(runs: Iterable[Row], batch: int) -> int:
    return sum(row["gbs"] == str(batch) for row in runs)


def rows(name: str) -> list[Row]:
    with (HERE / "reference" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def parameters() -> int:
    """How many weights the benchmark's policy has."""
    outline = read_outline(Path(str(files("grpo_bench_rules_mlperf").joinpath("qwen35_397b_a17b.json"))))
    return sum(prod(shape) for shape in outline.tensors.values())


def main(date: str) -> None:
    found = made(rows("runs.csv"), rows("evaluations.csv"), parameters(), date)
    (PACKAGE / "reference_pace.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
