"""What only processes have: an environment, an interpreter, output, size limits of the wire."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from grpo_bench.contract import PlanError, PluginError


def test_fifty_megabytes_cross_both_ways_beside_small_calls(in_local, spec):
    big = np.arange(50_000_000 // 4, dtype=np.float32)

    async def body(fabric):
        group = await fabric.start_group(spec())
        answers = await asyncio.gather(group.call(0, "echo", big), *(group.call(0, "add", n, 0) for n in range(100)),
                                       group.call(0, "echo", big[:1000]))
        assert answers[1:-1] == list(range(100))
        np.testing.assert_array_equal(answers[0], big)
        np.testing.assert_array_equal(answers[-1], big[:1000])
    in_local(body)


def test_frames_of_every_size_around_the_buffer_arrive_whole(in_local, spec):
    sizes = [0, 1, 17, *(256 * 1024 + shift for shift in range(-40, 41, 8)), 1_000_003]

    async def body(fabric):
        group = await fabric.start_group(spec())
        answers = await asyncio.gather(*(group.call(0, "echo", bytes([size % 251]) * size) for size in sizes * 2))
        assert [(len(answer), answer[:1]) for answer in answers] == [
            (size, bytes([size % 251])[:size]) for size in sizes * 2]
    in_local(body)


def test_threads_and_variables_reach_the_worker(in_local, spec):
    async def body(fabric):
        group = await fabric.start_group(spec(threads=3, env={"MKL_NUM_THREADS": "2", "ANSWER": "42"}))
        names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ANSWER"
        return await group.call(0, "environment", *names)
    assert in_local(body) == ["3", "3", "2", "42"]


def test_output_and_log_lines_are_in_the_run_folder(in_local, spec, tmp_path):
    async def body(fabric):
        group = await fabric.start_group(spec("talker"))
        elapsed, now = await group.call(0, "speak")
        assert elapsed
        assert now.endswith("+00:00")
    in_local(body)
    text = (tmp_path / "workers" / "talker-0.log").read_text()
    assert text.startswith("--- 2030-01-01T00:00:00.000000+00:00 talker-0 starts\n")
    assert "talker-0 INFO an event answer=42\n" in text
    assert "talker-0 WARNING the other form\n" in text


def test_an_interpreter_that_is_none_is_a_plan_error(in_local, spec):
    async def body(fabric):
        with pytest.raises(PlanError, match=r"a-0 cannot be started with /no/python"):
            await fabric.start_group(spec(interpreter="/no/python"))
    in_local(body)


def test_guests_cannot_ask_for_another_environment(in_local, spec):
    async def body(fabric):
        await fabric.start_group(spec("base", env={"A": "1"}))
        await fabric.start_group(spec("fine", colocate="base", env={"A": "1"}))
        for change in ({"env": {"A": "2"}}, {"interpreter": "/another/python"}):
            with pytest.raises(PlanError, match="another interpreter or environment"):
                await fabric.start_group(spec("guest", colocate="base", **change))
    in_local(body)


def test_a_shared_process_ends_with_its_last_group_and_restarts_as_a_whole(in_local, spec):
    async def body(fabric):
        base = await fabric.start_group(spec("base"))
        guest = await fabric.start_group(spec("guest", colocate="base"))
        await guest.call(0, "note", "old")
        before = (await base.call(0, "identity"))[-1]
        await base.restart(0)
        after = (await guest.call(0, "identity"))[-1]
        assert after != before
        assert await guest.call(0, "notes") == []
        await base.close()
        assert (await guest.call(0, "identity"))[-1] == after
        with pytest.raises(PluginError, match="no worker base-0"):
            await base.call(0, "notes")
        await guest.close()
        return after
    assert not Path(f"/proc/{in_local(body)}").exists()


def test_nothing_is_left_in_the_temporary_folder(in_local, spec, temporary, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    seen = []

    async def body(fabric):
        await fabric.start_group(spec())
        seen.extend(temporary.iterdir())
    in_local(body)
    assert len(seen) == 1
    assert list(temporary.iterdir()) == []


def test_gpus_are_handed_out_once_until_their_group_is_closed(in_local, spec, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    async def seen(group):
        return [found for (found,) in await group.call_all("environment", "CUDA_VISIBLE_DEVICES")]

    async def body(fabric):
        first = await fabric.start_group(spec("first", workers=2, gpus=2))
        guest = await fabric.start_group(spec("guest", workers=2, colocate="first"))
        second = await fabric.start_group(spec("second", gpus=1))
        assert [await seen(group) for group in (first, guest, second)] == [["0,1", "2,3"], ["0,1", "2,3"], ["4"]]
        await second.restart(0)
        await first.close()
        third = await fabric.start_group(spec("third", gpus=2))
        assert [await seen(group) for group in (second, third)] == [["4"], ["5,6"]]
        await guest.close()
        fourth = await fabric.start_group(spec("fourth", gpus=3))
        assert await seen(fourth) == ["0,1,2"]
    in_local(body)


def test_workers_without_gpus_of_their_own_see_what_the_engine_sees(in_local, spec, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 7")

    async def body(fabric):
        shared = await fabric.start_group(spec("shared"))
        assert await shared.call(0, "environment", "CUDA_VISIBLE_DEVICES") == ["3, 7"]
        own = await fabric.start_group(spec("own", gpus=1))
        assert await own.call(0, "environment", "CUDA_VISIBLE_DEVICES") == ["3"]
        with pytest.raises(PlanError, match=r"needs 2 GPUs, and 1 of those in CUDA_VISIBLE_DEVICES=3, 7 are left"):
            await fabric.start_group(spec("more", gpus=2))
    in_local(body)
