"""Code that tries to get out of the sandbox, or to get more of the machine than it may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from grpo_bench.contract import LossSettings, Placement, PolicyFacts, Site
from grpo_bench_env_minirepair import MiniRepairConfig
from grpo_bench_env_minirepair.environment import describe

HERE = str(Path(__file__).resolve())
# Each prints BROKEN where it succeeds. Those in HARMLESS do succeed outside the sandbox, which proves that they try.
HARMLESS = {
    "read a system file": "print('BROKEN' if open('/etc/passwd').read() else '')",
    "read the repository": f"print('BROKEN' if open({HERE!r}).read() else '')",
    "list the root": "import os\nprint('BROKEN' if {'etc', 'boot', 'sys'} & set(os.listdir('/')) else '')",
    "read proc": "print('BROKEN' if open('/proc/self/maps').read() else '')",
    "make a temporary file": "import os\nos.close(os.memfd_create('x'))\nprint('BROKEN')",
    "write a file": "import os\npath = '/dev/shm/grpo-bench-test'\nos.close(os.open(path, os.O_WRONLY | os.O_CREAT))\n"
                    "os.unlink(path)\nprint('BROKEN')",
    "fork": "import os\nif not os.fork():\n    os._exit(0)\nprint('BROKEN')",
    "start a thread": "import _thread\n_thread.start_new_thread(print, ('x',))\nprint('BROKEN')",
    "run a program": "import os\nos.posix_spawn('/bin/true', ['true'], {})\nprint('BROKEN')",
    "open a socket": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).socket(2, 1, 0) >= 0 else '')",
    "open a local socket": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).socket(1, 1, 0) >= 0 else '')",
    "trace": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else '')",
    "change a signal timer": "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\nprint('BROKEN')",
    "lower a limit": "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('BROKEN')",
    "signal itself": "import os\nos.kill(os.getpid(), 0)\nprint('BROKEN')",
    "signal the parent": "import os\nos.kill(os.getppid() or 1, 0)\nprint('BROKEN')",
    "see its parent's user": "import os\nprint('BROKEN' if os.getuid() == 0 else '')",
}
HARMFUL = {
    "kill everything": "import os\nos.kill(-1, 9)\nprint('BROKEN')",
    "kill the server": "import os\nfor pid in (os.getppid(), 1, 2):\n    if pid:\n        os.kill(pid, 9)\n"
                       "print('BROKEN')",
    "kill its group": "import os\nos.killpg(0, 9)\nprint('BROKEN')",
    "new namespaces": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).unshare(0x10000000) == 0 else '')",
    "mount": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, b'') == 0 else '')",
    "become root": "import os\nos.setuid(0)\nprint('BROKEN')",
    "loosen the filter": "import ctypes\nprint('BROKEN' if ctypes.CDLL(None).prctl(22, 0, 0, 0, 0) == 0 else '')",
    "raise the memory limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('BROKEN')",
    "use the server's pipes": "import os\nfor fd in range(3, 1024):\n    try:\n        os.write(fd, b'x')\n"
                              "    except OSError:\n        continue\n    print('BROKEN', fd)",
}


@pytest.mark.parametrize("attack", HARMLESS)
def test_attacks_work_outside(attack: str) -> None:
    done = subprocess.run([sys.executable, "-c", HARMLESS[attack]], capture_output=True, text=True)
    if attack == "see its parent's user" and "BROKEN" not in done.stdout:
        pytest.skip("not root here")
    assert "BROKEN" in done.stdout, done.stderr


@pytest.mark.parametrize("attack", HARMLESS | HARMFUL)
def test_attacks_fail_inside(lab, attack: str) -> None:
    result = lab.exec((HARMLESS | HARMFUL)[attack])
    assert "BROKEN" not in result.stdout, result
    assert lab.exec("print('still here')").stdout == "still here\n"


def test_an_endless_loop_is_stopped_by_cpu_time(lab) -> None:
    result = lab.exec("print('partial', flush=True)\nwhile True:\n    pass")
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "")
    assert "CPU" in result.stderr


def test_an_endless_loop_that_ignores_the_signal_is_stopped(lab) -> None:
    result = lab.exec("import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True:\n    pass")
    assert (result.exit_code, result.timed_out) == (124, True)


def test_waiting_is_stopped_by_wall_time(lab) -> None:
    result = lab.exec("import time\ntime.sleep(1000)", timeout_s=0.3)
    assert (result.exit_code, result.timed_out) == (124, True)


def test_closing_the_outputs_does_not_outlive_the_limit(lab) -> None:
    result = lab.exec("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(1000)", timeout_s=0.3)
    assert result.timed_out


def test_memory_is_limited(lab) -> None:
    result = lab.exec("x = bytearray(10**9)")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "MemoryError")


def test_output_is_limited(lab) -> None:
    result = lab.exec("while True:\n    print('x' * 1000)")
    assert (result.exit_code, result.stdout) == (137, "")
    assert "output" in result.stderr


def test_a_crash_is_the_candidates_own(lab) -> None:
    assert lab.exec("import ctypes\nctypes.string_at(0)").exit_code == 139
    assert lab.exec("print(1)").stdout == "1\n"


SCAN = """
import ctypes, gc, sys
objects = gc.get_objects() + list(sys.modules.values())
objects += [referent for item in objects for referent in gc.get_referents(item)]
found = 0
for page in {id(item) >> 12 for item in objects}:
    data = ctypes.string_at(page << 12, 4096)
    at = data.find(b"sentinel-")
    while at >= 0:
        found += data[at + 9:at + 11] == bytes((108, 101))
        at = data.find(b"sentinel-", at + 1)
print(found)
"""


def test_nothing_of_an_earlier_run_is_left_in_memory(lab) -> None:
    """A program reads every page that holds an object, those inherited from the server included."""
    assert lab.exec("x = 'sentinel-left-behind'\nprint(x)").stdout == "sentinel-left-behind\n"
    assert lab.exec(SCAN).stdout == "0\n"
    assert int(lab.exec("planted = 'sentinel-' + 'left-behind' * len('x')\n" + SCAN).stdout) > 0


def test_expected_values_are_not_in_the_child(lab) -> None:
    """The function looks through all objects and frames for the value that the test wants."""
    hunt = ("import gc, sys\n"
            "def f(x):\n"
            "    frame, seen = sys._getframe(), []\n"
            "    while frame:\n"
            "        seen += list(frame.f_locals.values())\n"
            "        frame = frame.f_back\n"
            "    everything = gc.get_objects()\n"
            "    for value in [*seen, *everything, *(r for o in everything for r in gc.get_referents(o))]:\n"
            "        if type(value) is str and value.startswith('expect') and value.endswith('-9317'):\n"
            "            return value\n"
            "    return None\n")
    assert lab.score(hunt, [[[1], "expected-value-9317"]]).reward == 0.0
    planted = hunt + "PLANTED = 'expected-value' + '-9317'\n"
    assert lab.score(planted, [[[1], "expected-value-9317"]]).reward == 1.0


def test_isolation_in_force_is_stated(lab) -> None:
    site = Site(PolicyFacts(Path(), 1, 1), Placement(), None, {}, {}, LossSettings(), deterministic=False)
    facts = describe(MiniRepairConfig(isolation=lab.isolation), site)
    assert facts["isolation"] == lab.isolation
    assert facts["uid"] != 0
    assert bool(facts["namespaces"]) == (lab.isolation != "process")
