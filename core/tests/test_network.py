from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from grpo_bench.network import free_port, interface_of, use_interface_of


def test_a_free_port_can_be_listened_at():
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as server:
        assert server.getsockname()[1] > 0


def test_an_interface_is_found_by_its_address():
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    assert interface_of("127.0.0.1") == interface_of("localhost") == loopback
    assert interface_of("192.0.2.201") is None
    known = Path("/proc/net/if_inet6")
    if known.is_file() and f"{1:032x} " in known.read_text():
        assert interface_of("::1") == loopback
    assert interface_of("2001:db8::1") is None


def test_what_the_environment_says_of_interfaces_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_interface_of("192.0.2.201")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
