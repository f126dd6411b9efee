"""A Ray cluster of this machine alone: the program that holds it, and how a run starts and ends it.

``python -m grpo_bench_fabric_ray.own SETTINGS`` starts the cluster, says in one line of JSON where it is, and ends it
when its standard input does: so it ends with whoever started it, however that ended. Should this program be killed, the
kernel kills what it started. Only who can read the cluster's token may use it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from grpo_bench.contract import DeadlineExceeded, PluginError
from grpo_bench.processes import exit_code, let_go, start_process
from grpo_bench.scratch import Scratch

END_S = 20.0
KNOBS = {
    "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",  # processes that nobody asked for
    "RAY_memory_monitor_refresh_ms": "0",  # it would end light actors for the memory that workers hold
    "RAY_health_check_initial_delay_ms": "2000", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What the processes of the cluster start with."""
_TEMPORARY = Path("/tmp")
"""Ray's sockets need a short path."""


class OwnCluster:
    """The program as the run sees it. ``address`` and ``authentication``, variables, are what a driver needs."""

    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Any]) -> None:
        self.address: str = said["address"]
        self.authentication: dict[str, str] = said["authentication"]
        self._process = process

    @classmethod
    async def start(cls, object_store: int, log: Path, deadline_s: float) -> OwnCluster:
        """Start the program; what it writes besides goes to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        settings = json.dumps({"object_store": object_store})
        with log.open("ab") as output:
            process = await start_process(
                sys.executable, "-P", "-m", "grpo_bench_fabric_ray.own", settings, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=output, env={**os.environ, **KNOBS}, start_new_session=True)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(deadline_s):
                line = await process.stdout.readline()
        except TimeoutError:
            await _end(process)
            raise DeadlineExceeded(f"a Ray cluster of this machine was not there after {deadline_s:g} s",
                                   hint=f"what it wrote is in {log}") from None
        except BaseException:
            await _end(process)
            raise
        if not line:
            await _end(process)
            raise PluginError(f"a Ray cluster of this machine cannot be started: {_last_line(log)}",
                              hint=f"what it wrote is in {log}")
        return cls(process, json.loads(line))

    async def end(self) -> None:
        await _end(self._process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program by the end of its input, by force where that takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await exit_code(process)
    except TimeoutError:
        process.kill()
        await exit_code(process)
    finally:
        let_go(process)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


def main(settings: dict[str, Any]) -> None:
    scratch = Scratch(parent=_TEMPORARY)
    token = scratch.path / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ.update(authentication)
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    # In the main thread: the kernel ends what a thread started together with that thread.
    ray.init(
        include_dashboard=False, object_store_memory=settings["object_store"], log_to_driver=False,
        logging_level=logging.ERROR, _temp_dir=str(scratch.path))
    print(json.dumps({"address": ray.get_runtime_context().gcs_address, "authentication": authentication}), flush=True)
    sys.stdin.read()
    ray.shutdown()
    scratch.remove()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
