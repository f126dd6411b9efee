"""The scripted generator: what it reads, whom it takes a prompt for, and how its replies are read again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpo_bench_mock
import numpy as np
import pytest
from grpo_bench_mock.config import ScriptedConfig, TrainerConfig
from grpo_bench_mock.script import Call, Said, Script, check, read, text_of
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.contract import (
    FinishReason, InputError, Missing, Placement, PlanError, PluginContext, PolicyFacts, Purpose, Sample,
    SamplingSettings, Transfer, load_object,
)
from grpo_bench.engine import run_virtual
from grpo_bench.fabric import InlineFabric
from grpo_bench.policy import ChatFormat
from grpo_bench.steps import refit
from grpo_bench.testing import GeneratorSuite

BASE = Path(grpo_bench_mock.__file__).parent / "base"
FORMAT = ChatFormat(BASE)
SCRIPT = Path(__file__).parent / "data" / "script.json"
SAMPLING = SamplingSettings(max_tokens=2000).stamp(Purpose.TRAIN, stop_token_ids=tuple(FORMAT.stop_ids),
                                                   max_context=4096, seed=0)
LOOK = {"content": "I look.", "calls": [{"name": "execute_bash", "arguments": {"command": "ls"}}]}
PATCH = {"calls": [{"name": "execute_bash", "arguments": {
    "command": "git apply - <<'END'\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-if a < \"b\":\n+if a > 'b' </x>:\nEND\n"}}]}
VARIANTS = [{"name": "fix", "reward": 1, "replies": [LOOK, PATCH]}, {"name": "nothing", "reward": 0, "replies": [LOOK]},
            {"name": "talk", "reward": 0, "replies": [{"content": "No idea."}]}]


class TestScripted(GeneratorSuite):
    plugin = "scripted"
    options = {"script": str(SCRIPT)}


def written(folder: Path, data: Any) -> Path:
    path = folder / "script.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def two_tasks(folder: Path) -> Path:
    return written(folder, {"schema": 1, "tasks": [
        {"when": f"repair {name}", "instance_id": f"id-{name}", "variants": VARIANTS} for name in ("one", "two")]})


def with_generator(folder: Path, script: Path, work: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``work`` with a client of the generator under the mock trainer's weights, and the generator."""

    async def main(clock: Any) -> Any:
        fabric = InlineFabric(clock, logging.getLogger("mock"), serialise=True)

        def made(plugin: Any, config: Any) -> Any:
            return load_object(plugin.factory)(PluginContext(
                config=config, fabric=fabric, placement=Placement(workers=2), run_folder=folder,
                policy=PolicyFacts(BASE, 4096, 431), seed=0, deterministic=True, clock=clock, logger=None,
                shared={"transport": "mock", "sampling": {Purpose.TRAIN: SAMPLING}}))

        trainer = made(grpo_bench_mock.trainer, TrainerConfig())
        generator = made(grpo_bench_mock.scripted, ScriptedConfig(script=script))
        try:
            await trainer.start()
            await generator.start()
            (folder / "v0").mkdir()
            transfer = Transfer(0, "mock", str(folder / "v0"), trainer.tensors(), 1024, 60.0, 2)
            await refit(trainer, generator, transfer, None, clock)
            await generator.resume()
            remotes = [await fabric.connect(address) for address in generator.addresses()]
            return await work(load_object(grpo_bench_mock.scripted.client or "")(remotes), generator)
        finally:
            await fabric.close()

    return run_virtual(main)


async def say(client: Any, prompt: str, stream: str, max_tokens: int = 2000) -> Sample:
    return await client.generate(stream, FORMAT.encode(prompt), replace(SAMPLING, max_tokens=max_tokens), stream=stream,
                                 affinity="train-0", deadline_s=30.0)


def read_again(sample: Sample) -> list[tuple[str, Mapping[str, str]]]:
    assert sample.finish is FinishReason.STOP and sample.ids[-1] == FORMAT.eos_id
    return [(call.name, call.arguments) for call in FORMAT.parse(FORMAT.decode(sample.ids[:-1])).tool_calls]


def test_each_rollout_plays_its_variant_turn_by_turn_and_then_finishes(tmp_path: Path) -> None:
    async def work(client: Any, generator: Any) -> None:
        heard = {(index, turn): read_again(await say(client, "Please repair two.", f"t7.{index}/{turn}"))
                 for index in range(4) for turn in range(4)}
        looked = [("execute_bash", {"command": "ls"})]
        patched = [("execute_bash", PATCH["calls"][0]["arguments"])]
        finished = [("finish", {"message": "That was all."})]
        assert [heard[0, turn] for turn in range(4)] == [looked, patched, finished, finished]
        assert [heard[1, turn] for turn in range(4)] == [looked, finished, finished, finished]
        assert [heard[2, turn] for turn in range(2)] == [[], finished]
        assert [heard[3, turn] for turn in range(4)] == [heard[0, turn] for turn in range(4)]
        assert read_again(await say(client, "Please repair two.", "v1.0.1r2/0")) == looked
        assert read_again(await say(client, "Please repair two.", "v1.0.1r2/1")) == finished

    with_generator(tmp_path, two_tasks(tmp_path), work)


def test_versions_and_log_probabilities_are_those_of_the_weights(tmp_path: Path) -> None:
    async def work(client: Any, generator: Any) -> None:
        sample = await say(client, "Please repair one.", "0.0/1")
        again = await say(client, "Please repair one.", "0.0/1")
        assert sample.versions == ((len(sample.ids), 0),)
        assert (sample.ids == again.ids).all() and (sample.log_probabilities == again.log_probabilities).all()
        probed, = await generator.probe([np.concatenate([FORMAT.encode("Please repair one."), sample.ids])])
        assert (probed[-len(sample.ids):] == sample.log_probabilities).all()

    with_generator(tmp_path, two_tasks(tmp_path), work)


def test_a_limit_cuts_a_reply(tmp_path: Path) -> None:
    async def work(client: Any, generator: Any) -> None:
        whole, cut = [await say(client, "repair one", "0.0/1", limit) for limit in (2000, 7)]
        assert cut.finish is FinishReason.LENGTH and (cut.ids == whole.ids[:7]).all()

    with_generator(tmp_path, two_tasks(tmp_path), work)


@pytest.mark.parametrize(("prompt", "named"), [
    ("nothing to do", "no task of script"), ("repair one and repair two", "tasks id-one and id-two of script")])
def test_a_prompt_of_no_task_or_of_two_is_an_error_that_names_them(tmp_path: Path, prompt: str, named: str) -> None:
    async def work(client: Any, generator: Any) -> None:
        with pytest.raises(InputError, match=f"rollout 3.1 is that of {named}"):
            await say(client, prompt, "3.1/0")

    with_generator(tmp_path, two_tasks(tmp_path), work)


def test_what_tools_print_later_does_not_change_the_task(tmp_path: Path) -> None:
    async def work(client: Any, generator: Any) -> None:
        await say(client, "repair one", "0.1/0")
        assert read_again(await say(client, "repair one\n$ cat notes\nrepair two", "0.1/1"))[0][0] == "finish"

    with_generator(tmp_path, two_tasks(tmp_path), work)


VALUES = st.one_of(st.text("ab <>=/\n\"'{}\\é", max_size=40), st.integers(), st.booleans(), st.lists(st.integers()))


ARGUMENTS = st.dictionaries(st.sampled_from(["path", "text"]), VALUES)


@given(st.text("ab \n<>.", max_size=20), st.lists(ARGUMENTS, max_size=3))
def test_a_reply_is_read_as_the_calls_that_it_says(content: str, arguments: list[dict[str, Any]]) -> None:
    said = Said(content=content, calls=tuple(Call(name="tool", arguments=each) for each in arguments))
    variant = {"name": "v", "reward": 0, "replies": [said.model_dump()]}
    script = Script.model_validate(
        {"schema": 1, "tasks": [{"when": "", "instance_id": "id", "variants": [variant]}]})
    check(script, Path("script.json"), FORMAT)
    parsed = FORMAT.parse(text_of(said))
    assert [{name: value if isinstance(value, str) else json.dumps(value) for name, value in each.items()}
            for each in arguments] == [dict(call.arguments) for call in parsed.tool_calls]


@pytest.mark.parametrize("value", ["x\n</parameter>\n</function>", "a\n<parameter=b>\nc"])
def test_a_value_that_would_be_read_as_something_else_is_refused_by_its_place(tmp_path: Path, value: str) -> None:
    said = {"calls": [{"name": "think", "arguments": {"thought": value}}]}
    path = written(tmp_path, {"schema": 1, "tasks": [{"when": "x", "instance_id": "id-x", "variants": [
        {"name": "odd", "reward": 0, "replies": [LOOK, said]}]}]})
    with pytest.raises(PlanError, match="reply 1 of variant 'odd' of id-x would not be read as it is meant"):
        check(read(path), path, FORMAT)


@pytest.mark.parametrize(("data", "place"), [
    ("{", "script.json: Invalid JSON"),
    ({"schema": 2, "tasks": []}, "script.json: schema: "),
    ({"schema": 1, "tasks": []}, "script.json: tasks: "),
    ({"schema": 1, "tasks": [{"when": "x", "instance_id": "i", "variants": [
        {"name": "v", "reward": 0, "replies": [{"content": 3}]}]}]}, r"tasks\.0\.variants\.0\.replies\.0\.content: "),
])
def test_a_file_that_holds_no_script_is_an_error_with_its_place(tmp_path: Path, data: Any, place: str) -> None:
    with pytest.raises(PlanError, match=place):
        read(written(tmp_path, data))


def test_a_script_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"none\.json does not exist .*grpo-bench tasks build"):
        read(tmp_path / "none.json")

