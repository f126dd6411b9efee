"""The program of a worker process: ``python -m grpo_bench.fabric.worker FD ENDPOINT STACKS``.

FD is the control connection to whoever started the process, inherited; ENDPOINT the Unix socket to listen at; STACKS
the file that stacks are written to on SIGUSR1, by a handler in C that works while the interpreter is busy. The process
leads a session of its own. It ends on SIGTERM. Should its starter end first, however it ended, a thread sees the
control connection hang up, removes the temporary folders that the starter left, and kills this process with all it has
started, whatever the event loop is doing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import os
import select
import signal
import socket
import sys
import threading
from typing import cast

from grpo_bench.scratch import sweep

from ._host import Host
from ._proc import exit_descriptor, family, kill, table

_ENDING_MS = 10_000
"""How long a starter may take from the end of its connections to its own."""


def main(argv: list[str]) -> None:
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    endpoint, stacks = argv[1:]
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=open(stacks, "a"), all_threads=True)  # noqa: SIM115
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    threading.Thread(target=_die_with_starter, args=(control.fileno(), exit_descriptor(os.getppid())), name="lifeline",
                     daemon=True).start()
    asyncio.run(_serve(control, endpoint))


def _die_with_starter(control: int, starter: int) -> None:
    _wait(control, 0, None)
    kill(family(os.getpid(), table()))
    _wait(starter, select.POLLIN, _ENDING_MS)
    sweep()
    os.killpg(os.getpid(), signal.SIGKILL)


def _wait(descriptor: int, event: int, patience_ms: int | None) -> None:
    """Until it is so, or its other end hung up."""
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll(patience_ms)


async def _serve(control: socket.socket, endpoint: str) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    host = Host(endpoint)
    await host.listen()
    await loop.create_unix_connection(lambda: host.starter.frames, sock=control)
    await stop.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
