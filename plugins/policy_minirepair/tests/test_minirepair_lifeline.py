import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing
import signal
import threading

from grpo_bench_policy_minirepair.lifeline import end_with_parent

def work():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    print("at work", flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
"""


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_worker_ends_when_its_parent_is_killed(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"at work\n"
        getattr(parent, end)()
        rest, _ = parent.communicate(timeout=60)  # both must be gone for the pipe to end
    assert rest == b""
