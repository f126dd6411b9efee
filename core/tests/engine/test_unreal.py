"""Virtual time holds no threads, no subprocesses and no sockets: each of the real things raises where it is made."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.engine import run_virtual

TRUE = "/bin/true"


def a_thread() -> Any:
    threading.Thread(target=os.getpid, name="a").start()


def a_timer() -> Any:
    threading.Timer(0.0, os.getpid).start()


def a_pool_of_threads() -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(os.getpid).result()


def work_in_a_thread() -> Any:
    return asyncio.to_thread(os.getpid)


def a_process_that_spawns() -> Any:
    multiprocessing.get_context("spawn").Process(target=os.getpid).start()


def a_process_that_forks() -> Any:
    multiprocessing.get_context("fork").Process(target=os.getpid).start()


@pytest.mark.parametrize(("what", "used", "real"), [
    ("threads", "", a_thread),
    ("threads", "", a_timer),
    ("threads", "", a_pool_of_threads),
    ("threads", "run_in_executor", work_in_a_thread),
    ("subprocesses", f"subprocess.Popen({TRUE})", lambda: subprocess.run([TRUE], check=True)),
    ("subprocesses", "subprocess.Popen(/bin/sh)", lambda: subprocess.check_output("true", shell=True)),
    ("subprocesses", "subprocess.Popen(/bin/sh)", lambda: os.popen("true")),
    ("subprocesses", "os.system(b'true')", lambda: os.system("true")),
    ("subprocesses", "os.fork", os.fork),
    ("subprocesses", "os.forkpty", os.forkpty),
    ("subprocesses", f"os.posix_spawn({TRUE})", lambda: os.posix_spawn(TRUE, [TRUE], {})),
    ("subprocesses", f"os.exec({TRUE})", lambda: os.execv(TRUE, [TRUE])),
    ("subprocesses", "fork_exec", a_process_that_spawns),
    ("subprocesses", "os.fork", a_process_that_forks),
    ("subprocesses", "subprocess_exec(true)", lambda: asyncio.create_subprocess_exec("true")),
    ("subprocesses", "subprocess_shell(true)", lambda: asyncio.create_subprocess_shell("true")),
    ("sockets", "socket.__new__", socket.socket),
    ("sockets", "socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80)),
    ("sockets", "socket.gethostbyname", lambda: socket.gethostbyname("localhost")),
    ("sockets", "socket.", lambda: socket.create_connection(("127.0.0.1", 9))),
    ("sockets", "getaddrinfo(localhost)", lambda: asyncio.open_connection("localhost", 9)),
    ("sockets", "socket.__new__", lambda: asyncio.start_server(lambda *_: None, "127.0.0.1", 0)),
    ("sockets", "create_unix_connection", lambda: asyncio.open_unix_connection("nowhere")),
    ("sockets", "create_unix_server", lambda: asyncio.start_unix_server(lambda *_: None, "nowhere")),
])
def test_what_is_real_raises_where_it_is_made(what: str, used: str, real: Callable[[], Any], tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main(clock: Any) -> None:
        await asyncio.sleep(1)
        made = real()
        if inspect.isawaitable(made):
            await made

    threads = threading.active_count()
    with pytest.raises(RuntimeError) as raised:
        run_virtual(main)
    assert str(raised.value).startswith(f"a virtual-time run has no {what}, and ")
    assert used in str(raised.value) and str(raised.value).endswith(" was called in one")
    assert threading.active_count() == threads and not list(tmp_path.iterdir())


def test_whoever_catches_the_error_has_still_not_got_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def stubborn() -> bool:
        try:
            return bool(subprocess.run([sys.executable, "-c", "open('made', 'w')"]))
        except Exception:
            return False

    async def main(clock: Any) -> None:
        tried.extend([stubborn(), stubborn()])

    monkeypatch.chdir(tmp_path)
    run_virtual(main)
    assert tried == [False, False] and not list(tmp_path.iterdir())


def test_files_and_names_of_the_host_are_no_matter_of_time() -> None:
    async def main(clock: Any) -> str:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"1")
            os.fsync(file.fileno())
        return socket.gethostname()

    assert run_virtual(main) == socket.gethostname()


def test_before_and_after_all_is_allowed() -> None:
    async def failing(clock: Any) -> None:
        raise ValueError("the run fails")

    with pytest.raises(ValueError, match="the run fails"):
        run_virtual(failing)
    seen: list[str] = []
    thread = threading.Thread(target=seen.append, args=("a thread",))
    thread.start()
    thread.join()
    assert seen == ["a thread"]
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"
    socket.socket().close()


def test_other_threads_are_free_meanwhile() -> None:
    ready, go, found = threading.Event(), threading.Event(), list[int]()

    def beside() -> None:
        ready.set()
        go.wait(60)
        found.append(subprocess.run([TRUE]).returncode)
        inner = threading.Thread(target=found.append, args=(7,))
        inner.start()
        inner.join()
        socket.socket().close()

    thread = threading.Thread(target=beside)
    thread.start()
    assert ready.wait(60)

    async def main(clock: Any) -> None:
        go.set()
        thread.join(60)

    run_virtual(main)
    assert found == [0, 7]


def test_a_virtual_run_in_a_thread_of_its_own_is_held_to_it_too() -> None:
    raised: list[str] = []

    def beside() -> None:
        async def main(clock: Any) -> None:
            socket.socket()

        try:
            run_virtual(main)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert raised == ["a virtual-time run has no sockets, and socket.__new__ was called in one"]
