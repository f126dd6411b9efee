"""The fork server of one worker, from the worker's side: OpenHands imported once, outside of every sandbox.

A child gets pipes for its job, its result and its words, as a program started in the sandbox would, and enters by what
:class:`grpo_bench.contract.Entry` says. The server's end of the socket closes when the server is gone, whatever the
reason; children that it has not told of are then lost, and their sandboxes' closing ends them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_bench.contract import Entry

PROGRAMS = Path(__file__).parent / "inside"
_PACKET = 2**16
_GONE = -9
_CLOSE_S = 10.0
_KILL_S = 30.0


class Forked:
    """A child of the server, as the contract's Program. Once it has ended, ``usage`` is what the system says it took;
    ``lost`` where the server went first, of which the child is not the cause."""

    def __init__(self, server: ForkServer, name: str, stdout: asyncio.StreamReader,
                 stderr: asyncio.StreamReader) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.usage: Mapping[str, float] = {}
        self.lost = False
        self._server = server
        self._name = name
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    async def kill(self) -> None:
        """End it, at once; what it has started ends with its sandbox. A server that does not see to it hangs, and is
        ended with all its children."""
        if not self._exit.done():
            self._server.kill(self._name)
            await asyncio.wait([self._exit], timeout=_KILL_S)
        if not self._exit.done():
            self._server.give_up()

    def ended(self, code: int, usage: Mapping[str, float]) -> None:
        """The server's word that it is gone."""
        if not self._exit.done():
            self.usage = usage
            self._exit.set_result(code)


class ForkServer:
    """``cost`` is what starting it took: ``wall_s``, ``cpu_s``, ``peak_mb``, ``threads``."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, words: Any) -> None:
        self.cost: Mapping[str, float] = {}
        self._process = process
        self._control = control
        self._words = words
        self._children: dict[str, Forked] = {}
        self._names = map(str, itertools.count())
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(control, self._hear)

    @classmethod
    async def start(cls, interpreter: str, enter: Path, environment: Mapping[str, str], limit_s: float) -> ForkServer:
        """A server that has imported OpenHands; RuntimeError or TimeoutError with its last words where it cannot."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the server
        argv = [interpreter, "-E", "-s", "-B", "-W", "ignore", str(PROGRAMS / "zygote.py"), str(enter)]
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once, and is waited for in a thread
            argv, stdin=theirs.fileno(), stdout=words, stderr=words, env=dict(environment), cwd=os.sep,
            start_new_session=True)
        theirs.close()
        ours.setblocking(False)
        server = cls(process, ours, words)
        try:
            async with asyncio.timeout(limit_s):
                await server._ready
        except BaseException:
            await server.close()
            raise
        return server

    @property
    def alive(self) -> bool:
        return self._control.fileno() >= 0

    async def fork(self, entry: Entry, job: bytes) -> Forked:
        """A child in the sandbox that ``entry`` leads into; ``job`` is its standard input."""
        inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
        theirs = [inputs[0], outputs[1], errors[1]]
        name = next(self._names)
        try:
            child = self._children[name] = Forked(self, name, await _reader(outputs[0]), await _reader(errors[0]))
            packet = json.dumps({"id": name, "entry": asdict(entry)}).encode()
            socket.send_fds(self._control, [packet], theirs)
        except BaseException:
            os.close(inputs[1])
            self._children.pop(name, None)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        with suppress(OSError):  # it is gone already, and wait() tells
            await _write(inputs[1], job)
        return child

    def kill(self, name: str) -> None:
        with suppress(OSError):
            self._control.send(json.dumps({"id": name, "kill": True}).encode())

    def give_up(self) -> None:
        """End a server that does not answer."""
        self._process.kill()
        self._hang_up()

    async def close(self) -> None:
        """End the server and its children. Closing twice is fine."""
        self._hang_up()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._process.wait, _CLOSE_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _hear(self) -> None:
        try:
            data = self._control.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        said = json.loads(data)
        if "ready" in said:
            self.cost = said["ready"]
            self._ready.set_result(None)
        elif (child := self._children.pop(said["id"], None)) is not None:
            child.ended(said["exit"], {name: said[name] for name in ("cpu_s", "peak_mb")})

    def _hang_up(self) -> None:
        """The server is gone, or is to go."""
        if self.alive:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        for child in self._children.values():
            child.lost = True
            child.ended(_GONE, {})
        self._children.clear()
        if not self._ready.done():
            self._ready.set_exception(RuntimeError(f"the fork server ended: {self._last_words()}"))

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
    return reader


async def _write(descriptor: int, data: bytes) -> None:
    transport, protocol = await asyncio.get_running_loop().connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0))
    writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
    writer.write(data)
    try:
        await writer.drain()
    finally:
        writer.close()
