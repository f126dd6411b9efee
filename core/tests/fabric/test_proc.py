"""Processes as the kernel sees them."""

import select
import subprocess
import sys

import pytest

from grpo_bench.fabric._proc import exit_descriptor

OUTLIVED = """
import ctypes, os, platform, sys, threading
def last():
    sys.stdin.read()
    os._exit(3)
threading.Thread(target=last).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit, of this thread alone
"""


def readable(descriptor: int, patience_ms: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(patience_ms))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are ended one by one by a system call of Linux")
def test_a_process_has_ended_when_its_last_thread_has():
    with subprocess.Popen([sys.executable, "-c", OUTLIVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        descriptor = exit_descriptor(process.pid)
        process.stdout.readline()
        assert any(first_thread(process.pid) == "Z" or readable(descriptor, 10) for _ in range(6000))
        assert not readable(descriptor, 100)
        process.stdin.close()
        assert readable(descriptor, 60_000)
    assert process.returncode == 3


def first_thread(pid: int) -> str:
    with open(f"/proc/{pid}/task/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
