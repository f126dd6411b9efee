"""What runs beside OpenHands and needs none of it: the relay, the kept first request, the folders to mount."""

from __future__ import annotations

import json
import logging
import socket
import threading
from pathlib import Path

import pytest
from grpo_bench_agent_openhands import OpenHandsConfig
from grpo_bench_agent_openhands.agent import prefixes
from grpo_bench_agent_openhands.inside import relay
from grpo_bench_agent_openhands.keeping import Keeper

PARTS = [{"type": "text", "text": "Be "}, {"type": "text", "text": "good"}]
ASKED = {"messages": [{"role": "system", "content": PARTS}],
         "tools": [{"type": "function", "function": {"name": "think", "parameters": {}}}]}
LONG = b"x" * 300_000


def test_the_relay_carries_both_ways_and_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                heard = b"".join(iter(lambda: peer.recv(4096), b""))
                peer.sendall(heard[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(("127.0.0.1", relay.start(path))) as client:
            client.sendall(b"a" + LONG)
            client.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: client.recv(4096), b"")) == LONG + b"a"
        thread.join()


def test_a_relay_to_nowhere_hangs_up(tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", relay.start(str(tmp_path / "none")))) as client:
        assert client.recv(1) == b""


def test_the_first_request_is_kept_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        Keeper(OpenHandsConfig(), str(tmp_path), logging.getLogger("agent")).keep(ASKED)
    assert (tmp_path / "agent/system_prompt.txt").read_text() == "Be good"
    assert json.loads((tmp_path / "agent/tools.json").read_text()) == ASKED["tools"]
    assert len(list((tmp_path / "agent").iterdir())) == 2
    assert "tool execute_bash is missing" in caplog.text


def test_a_first_request_that_has_to_be_the_benchmarks(tmp_path: Path) -> None:
    keeper = Keeper(OpenHandsConfig(tools="benchmark-exact"), "", logging.getLogger("agent"))
    with pytest.raises(RuntimeError, match="the system prompt has digest"):
        keeper.keep(ASKED)


def test_the_folders_of_an_environment(tmp_path: Path) -> None:
    (tmp_path / "base/bin").mkdir(parents=True)
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\nversion = 3.12.1\n")
    assert prefixes(f"{tmp_path}/env/bin/python") == (f"{tmp_path}/env", f"{tmp_path}/base")
    assert prefixes(f"{tmp_path}/base/bin/python") == (f"{tmp_path}/base", f"{tmp_path}/base")
