"""The stand-ins at work: a small synchronous run on the inline fabric under virtual time, and their faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpo_bench_mock
import numpy as np
import pytest
from grpo_bench_mock.config import (
    AgentConfig, EnvironmentConfig, Fault, GeneratorConfig, HardwareConfig, RulesetConfig, TrainerConfig,
)
from grpo_bench_mock.weights import initial
from pydantic import ValidationError

from grpo_bench.contract import (
    Cause, End, FinishReason, Group, GroupSpec, GrpoSettings, LimitSettings, MaskSettings, Need, Placement,
    PluginContext, PolicyFacts, Position, Purpose, RefitError, Role, Sampling, SamplingSettings, Task, TrainBatch,
    Trajectory, Transfer, UpdateStats, load_object,
)
from grpo_bench.engine import run_virtual
from grpo_bench.fabric import InlineFabric
from grpo_bench.policy import ChatFormat
from grpo_bench.steps import Probe, apply_masks, build_batch, refit, summarize, with_advantages
from grpo_bench.steps.rollout import TARGET, PluginSpec, worker_config

BASE = Path(grpo_bench_mock.__file__).parent / "base"
GRPO = GrpoSettings(prompts_per_step=8, generations_per_prompt=4, max_steps=50)
STOP = tuple(ChatFormat(BASE).stop_ids)


class Rig:
    """The parts of a run and the loop that an engine would be."""

    def __init__(self, folder: Path, clock: Any, *, seed: int = 0, engines: int = 1, **configs: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.seed = seed
        self.transport = configs.get("transport", "mock")
        self.fabric = InlineFabric(clock, logging.getLogger("mock"), serialise=True)
        self.environment_config = configs.get("environment", EnvironmentConfig())
        self.agent_config = configs.get("agent", AgentConfig())
        self.limits = configs.get("limits", LimitSettings())
        self.trainer = self._make(grpo_bench_mock.trainer, configs.get("trainer", TrainerConfig()))
        self.generator = self._make(grpo_bench_mock.generator, configs.get("generator", GeneratorConfig()), engines)
        self.environment = self._make(grpo_bench_mock.environment, self.environment_config)
        self.version = 0
        self.probes = [np.arange(20, dtype=np.int32)]

    def _make(self, plugin: Any, config: Any, workers: int = 1) -> Any:
        return load_object(plugin.factory)(PluginContext(
            config=config, fabric=self.fabric, placement=Placement(workers=workers), run_folder=self.folder,
            policy=PolicyFacts(BASE, 1024, 431), seed=self.seed, deterministic=True, clock=self.clock, logger=None,
            shared={"transport": self.transport, "sampling": {Purpose.TRAIN: self.sampling()}}))

    async def start(self) -> None:
        await self.trainer.start()
        await self.generator.start()
        config = worker_config(
            environment=_spec(grpo_bench_mock.environment, self.environment_config),
            agent=_spec(grpo_bench_mock.agent, self.agent_config), client=grpo_bench_mock.generator.client or "",
            engines=self.generator.addresses(), policy="grpo_bench.policy:make_policy", limits=self.limits,
            policy_config={"folder": str(BASE), "max_context": 1024, "enable_thinking": False,
                           "tool_parser": "qwen3_xml"})
        self.workers = await self.fabric.start_group(GroupSpec("rollout", TARGET, config, Placement()))
        await self.workers.call_all("start")
        await self.refit()

    async def refit(self, pause: str = "drain") -> float | None:
        folder = self.folder / f"v{self.version}"
        folder.mkdir(exist_ok=True)
        transfer = Transfer(self.version, self.transport, str(folder), self.trainer.tensors(), 1024, 60.0,
                            len(self.generator.addresses()))
        await self.generator.pause(pause)
        probe = Probe(1e-4, sampled=self.probes) if self.transport == "mock" else None
        stats = await refit(self.trainer, self.generator, transfer, probe, self.clock)
        await self.generator.resume()
        return stats.probe_difference

    def sampling(self, max_context: int = 1024) -> Sampling:
        return SamplingSettings(max_tokens=96).stamp(Purpose.TRAIN, stop_token_ids=STOP, max_context=max_context,
                                                     seed=self.seed)

    async def roll(self, step: int, prompts: int = 4, size: int = 4, **sampling: Any) -> list[Group]:
        tasks = self.environment.tasks("train")

        async def one(task: Task, number: int, index: int) -> Trajectory:
            return await self.workers.call(0, "run", task, f"{number}.{index}", number, self.sampling(**sampling))

        groups = []
        for prompt in range(prompts):
            number = step * prompts + prompt
            task = tasks[number % len(tasks)]
            ended = await asyncio.gather(*(one(task, number, index) for index in range(size)))
            groups.append(Group(number, task.id, Position(0, number), self.version, tuple(ended)))
        return groups

    async def batch(self, step: int, groups: list[Group], *, compared: bool = True) -> TrainBatch:
        batch, report = build_batch(step, groups, GRPO)
        prev = await self.trainer.log_probabilities(batch, "current")
        settings = GRPO if compared else GRPO.model_copy(update={"masks": MaskSettings(sequence_error_max=None)})
        batch, report = apply_masks(batch, report, prev, settings)
        if compared:
            assert report.metrics["sequence_error_max"] == pytest.approx(1.0, abs=1e-6)
        return with_advantages(batch, report, GRPO)[0]

    async def step(self, step: int) -> tuple[float, UpdateStats]:
        groups = await self.roll(step)
        stats = await self.trainer.update(await self.batch(step, groups))
        self.version = step
        await self.refit()
        mean = summarize([item for group in groups for item in group.trajectories]).mean
        assert mean is not None
        return mean, stats


def _spec(plugin: Any, config: Any) -> PluginSpec:
    return PluginSpec(plugin.worker_factory, f"{type(config).__module__}:{type(config).__qualname__}",
                      config.model_dump(mode="json"))


def with_rig(folder: Path, work: Callable[[Rig], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main(clock: Any) -> Any:
        rig = Rig(folder, clock, **options)
        try:
            await rig.start()
            return await work(rig)
        finally:
            await rig.fabric.close()

    return run_virtual(main)


async def eight_steps(rig: Rig) -> tuple[list[float], str]:
    rewards = [(await rig.step(step))[0] for step in range(1, 9)]
    return rewards, await rig.trainer.weights_sha256()


def test_rewards_rise_and_equal_seeds_give_equal_runs(tmp_path: Path) -> None:
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(with_rig(folder, eight_steps, seed=seed, trainer=TrainerConfig(learning_rate=0.5), engines=2))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]
    assert np.mean(runs[0][0][-3:]) > np.mean(runs[0][0][:3]) + 0.2


def test_skill_may_grow_at_its_own_rate(tmp_path: Path) -> None:
    async def work(rig: Rig) -> list[float]:
        await rig.step(1)
        weights: Any = rig.trainer._weights
        return [weights[0], abs(weights[1:] - initial()[1:]).max()]

    runs = []
    for number, config in enumerate((TrainerConfig(), TrainerConfig(learning_rate=1e-6, skill_per_update=0.5))):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(with_rig(folder, work, trainer=config))
    (skill, moved), (own_skill, hardly) = runs
    assert (skill, own_skill) == (0.08, 0.5)
    assert 0 < hardly < 1e-4 * moved


def test_generator_and_trainer_agree_after_a_refit(tmp_path: Path) -> None:
    async def work(rig: Rig) -> float | None:
        await rig.step(1)
        return await rig.refit()

    assert with_rig(tmp_path, work) == 0.0


def test_the_checkpoint_itself_travels_by_safetensors_and_stays_as_it_was(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        before = [answer.tolist() for answer in await rig.generator.probe(rig.probes)]
        await rig.trainer.update(await rig.batch(1, await rig.roll(1), compared=False))
        rig.version = 1
        await rig.refit()
        assert [answer.tolist() for answer in await rig.generator.probe(rig.probes)] == before
        folder = _folder(tmp_path / "saved")
        await rig.trainer.save(folder, "weights")
        assert (folder / "model.safetensors").read_bytes() == (BASE / "model.safetensors").read_bytes()
        assert {tensor.dtype for tensor in rig.trainer.tensors()} == {"float32"}
        assert len(rig.trainer.tensors()) == 13

    with_rig(tmp_path, work, transport="safetensors")


@pytest.mark.parametrize("kind", ["nan", "wrong"])
def test_tensors_sent_wrong_make_other_weights(tmp_path: Path, kind: Any) -> None:
    async def work(rig: Rig) -> None:
        before = [answer.tolist() for answer in await rig.generator.probe(rig.probes)]
        rig.version = 1
        await rig.refit()
        assert [answer.tolist() for answer in await rig.generator.probe(rig.probes)] != before

    spoils = TrainerConfig(faults=(Fault(at="send", kind=kind, step=1),))
    with_rig(tmp_path, work, transport="safetensors", trainer=spoils)


def test_every_trained_token_leaves_a_trace(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.trainer.save(_folder(tmp_path / "start"), "full")
        batch = await rig.batch(1, await rig.roll(1, prompts=2))
        hashes = set()
        trained = np.flatnonzero(batch.token_mask)[::17]
        for index in trained:
            await rig.trainer.load(tmp_path / "start")
            mask = batch.token_mask.copy()
            mask[index] = False
            await rig.trainer.update(replace(batch, token_mask=mask))
            hashes.add(await rig.trainer.weights_sha256())
        assert len(trained) > 3
        assert len(hashes) > 3
        await rig.trainer.load(tmp_path / "start")
        await rig.trainer.update(batch)
        assert await rig.trainer.weights_sha256() not in hashes

    with_rig(tmp_path, work)


def test_what_was_saved_goes_on_as_it_was(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.step(1)
        folder = _folder(tmp_path / "saved")
        await rig.trainer.save(folder, "full")
        batch = await rig.batch(2, await rig.roll(2))
        await rig.trainer.update(batch)
        expected = await rig.trainer.weights_sha256()
        await rig.trainer.load(folder)
        assert await rig.trainer.weights_sha256() != expected
        await rig.trainer.update(batch)
        assert await rig.trainer.weights_sha256() == expected
        assert ChatFormat(folder).stop_ids == ChatFormat(BASE).stop_ids

    with_rig(tmp_path, work)


def test_a_kept_request_goes_on_under_the_new_weights(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        batch = await rig.batch(1, await rig.roll(1, prompts=2))
        rolling = asyncio.create_task(rig.roll(2, prompts=1, size=2))
        await asyncio.sleep(10.5)
        await rig.trainer.update(batch)
        rig.version = 1
        await rig.refit("keep")
        for trajectory in (await rolling)[0].trajectories:
            first = trajectory.sequences[0].turns[0]
            assert first.versions == ((10, 0), (len(first.sampled_ids) - 10, 1))
            assert trajectory.versions == (0, 1)

    with_rig(tmp_path, work, generator=GeneratorConfig(token_s=1.0))


def test_a_drain_waits_for_what_runs(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        rolling = asyncio.create_task(rig.roll(1, prompts=1, size=1))
        await asyncio.sleep(3.0)
        await rig.generator.pause("drain")
        assert (await rig.generator.health())["running"] == [0]
        await rig.generator.resume()
        assert (await rolling)[0].trajectories[0].end is End.COMPLETED

    with_rig(tmp_path, work, generator=GeneratorConfig(token_s=1.0))


def test_modelled_durations_pass_in_virtual_time(tmp_path: Path) -> None:
    async def work(rig: Rig) -> float:
        started = rig.clock.monotonic()
        await rig.step(1)
        return rig.clock.monotonic() - started

    slow = with_rig(tmp_path, work, trainer=TrainerConfig(update_s=3600.0), generator=GeneratorConfig(token_s=10.0))
    assert slow > 3600.0 + 4 * 200.0


def test_a_full_context_truncates(tmp_path: Path) -> None:
    async def work(rig: Rig) -> list[Group]:
        return await rig.roll(1, prompts=1, max_context=rig_prompt + 5)

    def first(groups: list[Group]) -> Any:
        return groups[0].trajectories[0].sequences[0].turns[0]

    async def plain(rig: Rig) -> list[Group]:
        return await rig.roll(1, prompts=1)

    rig_prompt = len(first(with_rig(tmp_path, plain)).context_ids)
    groups = with_rig(tmp_path, work)
    assert {item.end for item in groups[0].trajectories} == {End.TRUNCATED}
    assert (len(first(groups).sampled_ids), first(groups).finish) == (5, FinishReason.LENGTH)


@pytest.mark.parametrize(("role", "fault", "end", "cause"), [
    ("environment", Fault(at="open", kind="raise"), End.FAILED, Cause.SANDBOX_START),
    ("environment", Fault(at="open", kind="hang"), End.TIMEOUT, Cause.SANDBOX_START),
    ("environment", Fault(at="diff", kind="raise"), End.FAILED, Cause.ENVIRONMENT),
    ("environment", Fault(at="score", kind="nan"), End.FAILED, Cause.SCORE),
    ("environment", Fault(at="score", kind="late", seconds=500.0), End.TIMEOUT, Cause.SCORE),
    ("agent", Fault(at="run", kind="raise"), End.FAILED, Cause.AGENT),
    ("agent", Fault(at="run", kind="hang"), End.TIMEOUT, Cause.DEADLINE),
    ("generator", Fault(at="generate", kind="raise"), End.FAILED, Cause.GENERATOR),
    ("generator", Fault(at="generate", kind="hang"), End.TIMEOUT, Cause.GENERATOR),
])
def test_faults_of_rollouts_end_them_with_their_cause(tmp_path: Path, role: str, fault: Fault, end: End,
                                                      cause: Cause) -> None:
    configs = {"environment": EnvironmentConfig, "agent": AgentConfig, "generator": GeneratorConfig}

    async def work(rig: Rig) -> list[Group]:
        return await rig.roll(1, prompts=1)

    groups = with_rig(tmp_path, work, **{role: configs[role](faults=(fault,))})
    ended = groups[0].trajectories
    assert {(item.end, item.failure and item.failure.cause) for item in ended} == {(end, cause)}


def test_a_share_or_one_task_can_be_hit(tmp_path: Path) -> None:
    async def work(rig: Rig) -> list[Trajectory]:
        return [item for group in await rig.roll(0, prompts=16, size=1) for item in group.trajectories]

    half = with_rig(tmp_path, work, agent=AgentConfig(faults=(Fault(at="run", kind="raise", share=0.5),)))
    assert 0 < sum(item.end is End.FAILED for item in half) < 16
    one = with_rig(tmp_path, work, agent=AgentConfig(faults=(Fault(at="run", kind="raise", task="mock-train-0003"),)))
    assert [item.task_id for item in one if item.end is End.FAILED] == ["mock-train-0003"]


def test_nan_log_probabilities_are_masked_later(tmp_path: Path) -> None:
    async def work(rig: Rig) -> Any:
        batch, report = build_batch(1, await rig.roll(1), GRPO)
        prev = await rig.trainer.log_probabilities(batch, "current")
        return apply_masks(batch, report, prev, GRPO)[1]

    report = with_rig(tmp_path, work, generator=GeneratorConfig(
        faults=(Fault(at="generate", kind="nan", share=0.3),)))
    assert 0 < report.masked["log_probability_error"] < report.rows


@pytest.mark.parametrize("configs", [
    {"generator": GeneratorConfig(faults=(Fault(at="receive", kind="wrong", step=2),))},
    {"trainer": TrainerConfig(faults=(Fault(at="send", kind="wrong", step=2),))},
    {"generator": GeneratorConfig(faults=(Fault(at="receive", kind="nan", step=2),))},
    {"generator": GeneratorConfig(faults=(Fault(at="probe", kind="wrong", step=2),))},
])
def test_a_wrong_refit_shows(tmp_path: Path, configs: dict[str, Any]) -> None:
    async def work(rig: Rig) -> None:
        await rig.step(1)
        with pytest.raises(RefitError, match="differ"):
            await rig.step(2)

    with_rig(tmp_path, work, **configs)


@pytest.mark.parametrize(("role", "at"), [("trainer", "send"), ("generator", "receive")])
@pytest.mark.parametrize("kind", ["raise", "hang"])
def test_a_refit_that_fails_ends(tmp_path: Path, role: str, at: str, kind: Any) -> None:
    config = {"trainer": TrainerConfig, "generator": GeneratorConfig}[role](
        faults=(Fault(at=at, kind=kind, step=1),))

    async def work(rig: Rig) -> None:
        with pytest.raises(RefitError, match=role):
            await rig.step(1)

    with_rig(tmp_path, work, **{role: config})


def test_an_update_can_fail_at_one_step(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.step(1)
        with pytest.raises(RuntimeError, match="told to fail at update"):
            await rig.step(2)
        await rig.step(3)

    with_rig(tmp_path, work, trainer=TrainerConfig(faults=(Fault(at="update", kind="raise", step=2),)))


@pytest.mark.parametrize(("config", "fault"), [
    (TrainerConfig, {"at": "upadte", "kind": "raise"}), (AgentConfig, {"at": "run", "kind": "raise", "step": 1}),
    (TrainerConfig, {"at": "save", "kind": "nan"}),
    (TrainerConfig, {"at": "update", "kind": "raise", "task": "x"}), (AgentConfig, {"at": "run", "kind": "explode"}),
])
def test_a_fault_that_could_never_strike_is_refused(config: Any, fault: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config.model_validate({"faults": [fault]})


def test_tasks_are_the_same_every_time_and_differ_between_splits(tmp_path: Path) -> None:
    environment = load_object(grpo_bench_mock.environment.worker_factory or "")(EnvironmentConfig(), None)
    assert environment.tasks("train") == environment.tasks("train")
    prints = [task.fingerprint for split in ("train", "heldout", "final") for task in environment.tasks(split)]
    assert len(set(prints)) == len(prints) == 96
    with pytest.raises(ValueError, match="train, heldout, final"):
        environment.tasks("other")


def test_descriptors_name_what_exists() -> None:
    plugins = [getattr(grpo_bench_mock, name) for name in grpo_bench_mock.__all__]
    assert {plugin.role for plugin in plugins} == {
        Role.TRAINER, Role.GENERATOR, Role.ENVIRONMENT, Role.AGENT, Role.HARDWARE, Role.RULESET}
    for plugin in plugins:
        assert plugin.stand_in
        for spec in (plugin.factory, plugin.client, plugin.worker_factory):
            assert not spec or callable(load_object(spec))


def test_the_base_is_what_its_script_makes(tmp_path: Path) -> None:
    from grpo_bench_mock.make_base import make

    make(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        file.name: file.read_bytes() for file in BASE.iterdir()}


def test_hardware_and_ruleset() -> None:
    hardware = load_object(grpo_bench_mock.hardware.factory)(_Bare(HardwareConfig(workers=3)))
    placed = hardware.place({"generator": Need(), "rollout": Need(2)})
    assert {role: place.workers for role, place in placed.items()} == {"generator": 3, "rollout": 2}
    ruleset = load_object(grpo_bench_mock.ruleset.factory)(_Bare(RulesetConfig(period=4)))
    assert [step for step in range(11) if ruleset.should_validate(step, 10)] == [4, 8, 10]


class _Bare:
    def __init__(self, config: Any) -> None:
        self.config = config


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
