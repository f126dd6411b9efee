"""A headless Chromium, driven over its DevTools protocol: as much of it as looking at a page takes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_START_S, _ANSWER_S = 60.0, 30.0


def executable() -> str | None:
    """Where the browser is; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page. ``complaints`` are console messages and exceptions, ``requests`` the addresses it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def show(self, address: str, *, width: int, scheme: str) -> None:
        """Load a page into a window of that width, with a light or dark colour scheme."""
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                        mobile=width < 500)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        await self.call("Page.navigate", url=address)
        while not self._loaded:
            self._note(await self._socket.receive_json(timeout=_ANSWER_S))

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=_ANSWER_S)
            if message.get("id") == self._calls:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]))


@contextlib.asynccontextmanager
async def open_tab() -> AsyncIterator[Tab]:
    """A fresh browser with one tab, gone afterwards."""
    command = executable()
    assert command is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            command, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        draining = None
        try:
            port = await asyncio.wait_for(_announced(process.stderr), _START_S)
            draining = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = await answer.json(content_type=None)
                address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await tab.call(f"{domain}.enable")
                    yield tab
        finally:
            process.terminate()
            await process.wait()
            if draining is not None:
                await draining


async def _announced(stderr: asyncio.StreamReader) -> str:
    """The port that the browser says it listens on."""
    while line := await stderr.readline():
        if found := re.search(rb"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line):
            return found[1].decode()
    raise AssertionError("the browser ended before it listened")
