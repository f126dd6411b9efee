"""What needs no cluster: settings, refusals, and how Ray's blocking calls are made."""

import asyncio
import threading

import pytest
import structlog
from grpo_bench_fabric_ray import RayConfig, plugin
from grpo_bench_fabric_ray.actor import seat_number
from grpo_bench_fabric_ray.aside import aside
from grpo_bench_fabric_ray.cluster import connect
from grpo_bench_fabric_ray.fabric import RayFabric
from pydantic import ValidationError

from grpo_bench.contract import Address, GroupSpec, Placement, PlanError, PluginError


def test_it_reaches_hosts_and_keeps_determinism():
    assert plugin.capabilities.hosts
    assert plugin.capabilities.deterministic


@pytest.mark.parametrize("settings", [
    {"wait_s": 0}, {"wait_s": float("inf")}, {"loss_s": -1}, {"grace_s": 0}, {"object_store_gib": 0.01},
    {"adress": "x"}, {"address": ""}, {"address": "local"}, {"address": "host"}, {"address": "ray://host:1"},
    {"address": "host:1\n"}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        RayConfig(**settings)


def test_a_fabric_that_is_not_open_starts_nothing_and_closes(tmp_path):
    async def main():
        fabric = RayFabric(RayConfig(), tmp_path, structlog.get_logger(), lambda name, message: None)
        with pytest.raises(PluginError, match="not open"):
            await fabric.start_group(GroupSpec("a", "module:function", None, Placement()))
        assert await fabric.stacks() == {}
        assert await fabric.cpu_seconds() == 0
        await fabric.close()
    asyncio.run(main())


def test_a_cluster_whose_token_is_not_here_cannot_be_joined(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(PlanError, match=r"127\.0\.0\.1:1 cannot be joined: .*token"):
        asyncio.run(connect("127.0.0.1:1", "here", 2**27, tmp_path / "log", 60))


@pytest.mark.parametrize("address", ["auto", "local", "host", "ray://host:10001", "http://host:8265"])
def test_words_of_rays_own_are_no_address(address, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(PlanError, match="is not the host:port of a Ray cluster"):
        asyncio.run(connect(None, "here", 2**27, tmp_path / "log", 60))


def test_a_seat_is_known_by_its_socket_on_whatever_host():
    assert {seat_number(Address("gen", 0, endpoint)) for endpoint in ("a:/tmp/x/12.sock", "b:/var/y/12.sock")} == {"12"}


def test_a_blocking_call_that_hangs_ends_at_its_deadline_and_holds_up_nothing():
    hold = threading.Event()

    async def main():
        with pytest.raises(TimeoutError):
            await aside(0.05, hold.wait)
        return await aside(60, lambda: 7)
    assert asyncio.run(main()) == 7
    hold.set()


def test_what_a_blocking_call_raises_is_raised():
    def fail():
        raise KeyError("x")
    with pytest.raises(KeyError):
        asyncio.run(aside(60, fail))
