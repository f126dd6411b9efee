"""The model of the reference: what its script makes of logs, and how far the packaged one is from runs that it was not
made of."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_sim.choosing import packaged
from grpo_bench_sim.held_out import held_out
from grpo_bench_sim.model import Model, read_model
from grpo_bench_sim.reading import RunTimes, StepTimes
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario, counted_step

from .small import planned

TOOLS = Path(__file__).parents[1] / "tools"
STEPS = {256: 18, 512: 10}
BUSY = 100.0
ORDER = (0.0, 0.0, 40.0, 10.0, 0.0, 250.0, 20.0, 300.0, 280.0, 310.0, 90.0, 200.0, 5.0, 0.0, 30.0, 0.0, 0.0, 60.0, 0.0,
         110.0, 0.0, 150.0)
SLOW = 300.0
"""Seconds by which the validation of each third replica is longer."""


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    """The script, with the modules beside it."""
    sys.path.insert(0, str(TOOLS))
    try:
        yield importlib.import_module("fit_reference")
    finally:
        sys.path.remove(str(TOOLS))


def waited(waits: Any, batch: int) -> list[float]:
    """By step, from the second to the last: the longest of a rollout and the stalls of the next step's blocks."""
    blocks, longest = batch // 256, waits.seconds * (1 + waits.sigma)
    return [longest + max(waits.order[step * blocks:(step + 1) * blocks]) for step in range(2, STEPS[batch] + 1)]


def ran(waits: Any, batch: int, seeds: Sequence[int]) -> list[RunTimes]:
    """What stands in the engine's place here: runs whose waits are known."""
    steps = [StepTimes(1, BUSY + 5, {"rollout": 5.0, "update": BUSY}, 0.0, batch), *(
        StepTimes(step, wait + BUSY, {"drain": wait, "update": BUSY}, 0.0, batch)
        for step, wait in enumerate(waited(waits, batch), 2))]
    return [RunTimes("target_met", 0.0, tuple(steps), ((STEPS[batch], 4 * waits.seconds),), (),
                     {"refit": waits.first}, 0.0, 0.0)] * len(seeds)


def validated(model: Model) -> list[float]:
    """What stands there for validations alone."""
    law: Any = model.validation[0].seconds
    return [4 * law.median, 4 * law.median + 400 * law.sigma]


def logs(folder: Path, waits: Any, *, update: float = 1.0, held: float = 1.0) -> Path:
    """Six replicas of each batch: updates take 6 s and 0.02 s a rollout and 40 us a token, times ``update``; what is
    held out takes ``held`` times as long."""
    tables: dict[str, list[dict[str, Any]]] = {"steps": [], "runs": [], "evals": []}
    for batch, replica in ((batch, replica) for batch in STEPS for replica in range(1, 7)):
        scale = held if replica > 3 else 1.0
        waits_s = waited(waits, batch)
        for step, wait in enumerate([5.0, *waits_s[:-1]], 1):
            tokens = batch * (5000 + 37 * (step * replica % 7))
            first = 170.0 if step == 1 else 0.0
            tables["steps"].append({
                "gbs": batch, "replica": replica, "step": step, "wall_gap_s": scale * (wait + BUSY),
                "exposed_generation_time": scale * wait, "weight_sync_time": scale * 15,
                "policy_training_time": scale * (first + update * (6 + 0.02 * batch + 40e-6 * tokens)),
                "unaccounted_in_step_s": scale * (first + 4 + 0.06 * batch), "outside_step_s": scale * 0.04 * batch,
                "global_valid_toks": tokens, "global_valid_seqs": batch})
        tables["runs"].append({
            "gbs": batch, "replica": replica, "init_min": 7, "run_min": scale * 160, "first_step_pre_s": 400,
            "first_step_wall_s": waits.first + BUSY + 5, "last_step_wall_s": waits_s[-1] + BUSY})
        tables["evals"].append({"gbs": batch, "replica": replica, "eval_duration_s": scale * (
            4 * waits.seconds + SLOW * (replica % 3 == 0))})
    for name, rows in tables.items():
        with (folder / f"rcp_{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def known(tools: Any) -> Any:
    return tools.Waits(seconds=210.0, sigma=0.2, order=ORDER, first=80.0)


def fit(tools: Any, folder: Path) -> Model:
    return tools.model_of(tools.read_logs(folder), lambda model: ran, validated, day="2026-01-02", rounds=40, seeds=1)


def test_what_logs_were_made_of_is_found_again(tools: Any, tmp_path: Path) -> None:
    model = fit(tools, logs(tmp_path, known(tools)))
    update, first = model.update, model.first
    assert (update.fixed, update.per_row, update.per_token) == pytest.approx((6, 0.02, 40e-6), rel=0.01)
    assert model.log_probabilities.per_row == pytest.approx(0.06) and model.driver.per_row == pytest.approx(0.04)
    assert (first.update, first.log_probabilities) == pytest.approx((170, 170), abs=0.2)
    assert (model.start.middle, model.refit.middle) == pytest.approx((420, 15))
    assert model.train[0].seconds.middle == pytest.approx(210, rel=0.01)
    assert first.rollout == pytest.approx(80, rel=0.05)
    assert model.stalls.order[2:19] == pytest.approx(ORDER[2:19], abs=15)
    assert model.stalls.order[19:] == pytest.approx((0, 150, 0), abs=15) and model.stalls.paired == 3
    assert model.stalls.sudden_share == 0


def test_validations_have_the_mean_of_the_logs(tools: Any, tmp_path: Path) -> None:
    model = fit(tools, logs(tmp_path, known(tools)))
    trained: Any = model.train[0].seconds
    apart: Any = model.validation[0].seconds
    assert 4 * apart.median + 200 * apart.sigma == pytest.approx(840 + SLOW / 3, rel=0.001)
    assert apart.sigma == trained.sigma != 0 and apart.median > trained.median


def test_logs_that_cannot_be_read_are_refused_in_one_line(tools: Any, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tools.main([str(tmp_path / "none"), "--out", str(tmp_path / "model.json")])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and f"cannot read {tmp_path / 'none' / 'rcp_steps.csv'}: No such file" in said
    assert not list(tmp_path.iterdir())


def test_only_what_is_fitted_moves_the_model(tools: Any, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "held", "faster")]
    for folder in folders:
        folder.mkdir()
    one, held, faster = (fit(tools, logs(folder, known(tools), **what)) for folder, what in zip(
        folders, ({}, {"held": 3.0}, {"update": 0.5}), strict=True))
    assert held != one and held.model_copy(update={"measured": one.measured}) == one
    assert faster.update.per_token == pytest.approx(one.update.per_token / 2, rel=0.01)
    assert [(found.batch, found.replicas, found.held_out) for found in held.measured] == [
        (256, (1, 2, 3), False), (256, (4, 5, 6), True), (512, (1, 2, 3), False), (512, (4, 5, 6), True)]
    assert held.measured[1].values["refit"][0] == 45 and len(held.measured[1].values["step"]) == 3 * 17


def test_sudden_stalls_are_those_far_above_the_other_replicas(tools: Any, tmp_path: Path) -> None:
    replicas = tools.read_logs(logs(tmp_path, known(tools)))
    steps = list(replicas[1].steps)
    steps[4] = replace(steps[4], exposed=steps[4].exposed + 250, wall=steps[4].wall + 250)
    replicas[1] = replace(replicas[1], steps=tuple(steps))
    share, stalls = tools.sudden({256: replicas[:3]})
    assert stalls == [pytest.approx(250 + BUSY)] and share == pytest.approx(1 / (3 * 16 * 256))


def test_the_file_is_the_model(tools: Any, tmp_path: Path) -> None:
    model = fit(tools, logs(tmp_path, known(tools)))
    file = tmp_path / "model.json"
    file.write_text(tools.text_of(model))
    assert read_model(file) == model


def reference() -> Model:
    return next(model for model in packaged() if model.name == "qwen35-397b-gb300")


def test_the_packaged_model_says_where_it_is_from() -> None:
    model = reference()
    assert {(found.batch, found.held_out) for found in model.measured} == {
        (batch, out) for batch in (256, 512) for out in (False, True)}
    assert set(model.conditions) == {"256", "512"} and model.rows == (256, 512)
    assert model.source and model.method and model.date


def test_the_target_is_met_at_the_step_of_the_public_logs_of_a_batch() -> None:
    assert counted_step(planned(profile="gb300-256-gbs1152"), reference(), Scenario()) == 6


def test_a_seed_decides_a_simulation() -> None:
    model = reference()
    plan = planned(*model.conditions["256"], "grpo.max_steps=2", "validation.start_at=2", profile="gb300-256")
    one, again, other = (simulate(plan, model, Scenario(), [seed], None).runs for seed in (1, 1, 2))
    assert one == again and one != other


def test_held_out_runs_are_met_within_a_tenth() -> None:
    found = held_out(lambda overrides: planned(*overrides, profile="gb300-256"), reference(), range(3))
    off = {(compared.batch, compared.name): compared.deviation for compared in found if compared.bound is not None}
    assert off.keys() == {(batch, name) for batch in (256, 512)
                          for name in ("step", "exposed generation", "weight sync", "run")}
    assert {key: share for key, share in off.items() if abs(share) > 0.10} == {}
