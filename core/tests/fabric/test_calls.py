"""What a call means, whichever fabric the worker runs in."""

import asyncio
import math

import numpy as np
import pytest

from grpo_bench.contract import (
    BatchError, Boundary, DeadlineExceeded, Position, PlanError, PluginError, Purpose, WorkerLost,
)
from grpo_bench.fabric._peer import Peer


def test_values_keep_their_types(in_fabric, spec):
    values = [None, (1, ("a", [2.5])), {"k": (Purpose.TRAIN, Position(3, 4))}, -(10**40), math.inf, b"raw",
              np.arange(6, dtype=np.int32).reshape(2, 3)]

    async def body(fabric):
        group = await fabric.start_group(spec())
        return [await group.call(0, "echo", value) for value in values], await group.call(0, "echo", 1, key=(2,))
    found, named = in_fabric(body)
    assert named == ((1,), {"key": (2,)})
    for value, answer in zip(values, found, strict=True):
        assert type(answer) is type(value)
        np.testing.assert_equal(answer, value)


def test_workers_know_who_they_are(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec("gen", "fabric_targets:later", workers=2, config={"a": 1}))
        assert group.size == 2
        assert [group.address(rank).rank for rank in range(2)] == [0, 1]
        return await group.call_all("identity")
    assert [found[:4] for found in in_fabric(body)] == [("gen", 0, 2, {"a": 1}), ("gen", 1, 2, {"a": 1})]


def test_a_thousand_calls_at_once_are_answered_each_with_its_own(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        return await asyncio.gather(*(group.call(0, "add", number, 1) for number in range(1000)))
    assert in_fabric(body) == list(range(1, 1001))


def test_an_exception_names_worker_method_and_type_and_keeps_its_traceback(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        with pytest.raises(PluginError, match=r"^a-0\.fail raised ValueError: the value is bad") as caught:
            await group.call(0, "fail")
        assert "in fail\n" in caught.value.remote_traceback
        assert not isinstance(caught.value, WorkerLost)
        assert await group.call(0, "echo", "alive") == "alive"
    in_fabric(body)


def test_an_error_of_the_contract_keeps_its_type(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        with pytest.raises(BatchError) as caught:
            await group.call(0, "fail_known")
        assert (caught.value.message, caught.value.hint) == ("no rows", "make some")
        assert caught.value.boundary == Boundary("torch", "trainer", None, 3)
    in_fabric(body)


@pytest.mark.parametrize(("method", "message"), [
    ("give_up", "CancelledError"), ("time_out", "TimeoutError: mine"), ("unsendable", "cannot cross"),
    ("fail_beyond", "Beyond: no Exception")])
def test_what_a_worker_raises_is_never_taken_for_the_callers_own(in_fabric, spec, method, message):
    async def body(fabric):
        group = await fabric.start_group(spec())
        with pytest.raises((PluginError, TypeError), match=message):
            await group.call(0, method, deadline_s=60)
    in_fabric(body)


def test_only_public_methods_can_be_called(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        for method in ("__init__", "context", "ad"):
            with pytest.raises(PluginError, match=rf"no method '{method}'.*it has: add, ") as caught:
                await group.call(0, method)
            assert "__init__" not in caught.value.hint
    in_fabric(body)


def test_what_cannot_cross_is_refused_by_name(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        with pytest.raises(TypeError, match="object cannot cross"):
            await group.call(0, "echo", object())
    in_fabric(body)


def test_a_deadline_cancels_the_call(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        with pytest.raises(DeadlineExceeded, match=r"a-0\.wait took longer than 0\.05 s"):
            await group.call(0, "wait", deadline_s=0.05)
        return await group.call(0, "notes")
    assert in_fabric(body) == ["waiting", "cancelled"]


def test_cancelling_a_call_cancels_it_in_the_worker(in_fabric, spec, until):
    async def body(fabric):
        group = await fabric.start_group(spec())
        call = asyncio.create_task(group.call(0, "wait"))
        await until(lambda: group.call(0, "notes"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await group.call(0, "notes")
    assert in_fabric(body) == ["waiting", "cancelled"]


def test_the_first_failure_of_call_all_cancels_the_others(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec(target="fabric_targets:FailsAtRank1", workers=2))
        with pytest.raises(PluginError, match="a-1"):
            await group.call_all("wait")
        return await group.call(0, "notes")
    assert in_fabric(body) in (["waiting", "cancelled"], [])


def test_a_call_to_a_process_that_is_not_connected_yet_is_refused_at_once():
    async def nobody():
        raise AssertionError("the connection was never lost")

    peer = Peer(lambda name: None, nobody)
    with pytest.raises(WorkerLost, match="being started"):
        asyncio.run(peer.call("a-0", "value", (), {}, None))


def test_workers_call_each_other(in_fabric, spec):
    async def body(fabric):
        first = await fabric.start_group(spec("first", workers=2))
        second = await fabric.start_group(spec("second"))
        assert await second.call(0, "call", first.address(1), "add", (1,), (2,)) == (1, 2)
        assert (await first.call(0, "call", first.address(1), "identity"))[:2] == ("first", 1)
        with pytest.raises(PluginError, match=r"first-0\.fail raised ValueError"):
            await second.call(0, "call", first.address(0), "fail")
        with pytest.raises(DeadlineExceeded, match=r"first-0\.wait"):
            await second.call(0, "call_within", 0.05, first.address(0), "wait")
        remote = await fabric.connect(first.address(1))
        assert (await remote.call("identity"))[:2] == ("first", 1)
    in_fabric(body)


def test_colocated_workers_call_each_other_without_copies(in_local, spec):
    async def body(fabric):
        base = await fabric.start_group(spec("base", workers=2))
        guest = await fabric.start_group(spec("guest", workers=2, colocate="base"))
        homes = [found[-1] for found in await base.call_all("identity")]
        assert [found[-1] for found in await guest.call_all("identity")] == homes
        assert len(set(homes)) == 2
        assert await guest.call(1, "same_object", base.address(1))
        with pytest.raises(PluginError, match="cannot cross"):
            await guest.call(1, "same_object", base.address(0))
    in_local(body)


def test_a_restarted_worker_is_new_and_keeps_its_address(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec(workers=2))
        other = await fabric.start_group(spec("other"))
        await group.call_all("note", "old")
        await other.call(0, "keep_remote", group.address(0))
        await group.restart(0)
        assert await group.call_all("notes") == [[], ["old"]]
        assert await other.call(0, "use_remote", "add", 1, 2) == 3
    in_fabric(body)


def test_a_group_shares_one_rendezvous_folder(in_fabric, spec):
    async def body(fabric):
        group = await fabric.start_group(spec(workers=2))
        assert await group.call(0, "rendezvous", "x") == ["0"]
        assert await group.call(1, "rendezvous", "x") == ["0", "1"]
        other = await fabric.start_group(spec("other"))
        assert await other.call(0, "rendezvous", "x") == ["0"]
    in_fabric(body)


def test_a_target_that_raises_stops_the_start_and_closes_the_rest(in_fabric, spec, tmp_path):
    async def body(fabric):
        with pytest.raises(PluginError, match="the start of worker a-1 raised RuntimeError: no device") as caught:
            await fabric.start_group(spec(target="fabric_targets:refuse", workers=2, config=str(tmp_path / "closed")))
        assert "in refuse\n" in caught.value.remote_traceback
        assert await fabric.stacks() == {}
        with pytest.raises(PluginError, match="raised AttributeError"):
            await fabric.start_group(spec(target="fabric_targets:nothing"))
        with pytest.raises(PluginError, match="raised ModuleNotFoundError"):
            await fabric.start_group(spec(target="no_such_module:nothing"))
        await fabric.start_group(spec())
    in_fabric(body)


def test_close_calls_close_once_and_ends_the_group(in_fabric, spec, tmp_path):
    closed = tmp_path / "closed"

    async def body(fabric):
        group = await fabric.start_group(spec(target="fabric_targets:Closing", workers=2, config=str(closed)))
        await group.close()
        await group.close()
        with pytest.raises(WorkerLost, match="a-0"):
            await group.call(0, "notes")
        with pytest.raises(PlanError, match="no worker group 'a'"):
            await fabric.connect(group.address(0))
        broken = await fabric.start_group(spec("b", "fabric_targets:BadClosing"))
        await broken.close()
    in_fabric(body)
    assert sorted(closed.read_text().split()) == ["0", "1"]


@pytest.mark.parametrize(("change", "message"), [
    ({"name": "a/b"}, "no name for"), ({"name": "first"}, "already"), ({"target": "fabric_targets"}, "module:function"),
    ({"workers": 0}, "at least one"), ({"colocate": "frist"}, "did you mean 'first'"),
    ({"colocate": "first", "workers": 2}, "more workers than first")])
def test_a_group_that_cannot_be_is_refused_before_anything_starts(in_inline, spec, change, message):
    async def body(fabric):
        await fabric.start_group(spec("first"))
        with pytest.raises(PlanError, match=message):
            await fabric.start_group(spec(**change))
    in_inline(body)
