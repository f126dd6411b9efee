"""One rollout of the agent, inside its sandbox: a job comes in on stdin, one line with the result goes out on stdout.

The job is a JSON object: ``workdir``, ``message`` (the first of the user), ``system_template`` (or null),
``max_turns``, ``command_timeout_s``, ``socket`` of the policy, ``model`` (``name``, ``token``, ``temperature``,
``top_p``, ``max_tokens``), ``env``. The result is one too: ``state``, ``error`` and ``steps`` as OpenHands gives them,
seconds by phase, CPU seconds and MiB. Nobody trusts it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from typing import Any

_TOOLS = ("tmux", "git", "bash")
_LONGEST = 2000


def main(started: float) -> None:
    """Read the job, play it, write the result; whatever goes wrong is a result as well."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        job = json.load(sys.stdin)
        try:
            result = _play(job, started)
        except Exception as error:
            result = {"state": "failed", "error": f"{type(error).__name__}: {error}"[:_LONGEST], "steps": 0}
        used, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        result |= {"cpu_s": used.ru_utime + used.ru_stime, "tools_cpu_s": children.ru_utime + children.ru_stime,
                   "peak_mb": used.ru_maxrss / 1024, "own_mb": _own_mb()}
        answer.write(json.dumps(result) + "\n")


def _play(job: dict[str, Any], started: float) -> dict[str, Any]:
    os.environ.update(job["env"])
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        raise FileNotFoundError(f"the sandbox has no {', '.join(missing)}, which OpenHands works with")
    scratch = tempfile.mkdtemp(prefix="openhands-")
    os.environ["TMUX_TMPDIR"] = scratch
    os.environ.pop("TMUX", None)
    import codeact
    import relay

    imported = time.monotonic()
    ended = codeact.play(job, f"http://127.0.0.1:{relay.start(job['socket'])}/v1", scratch)
    return {"state": ended.state, "error": ended.error[:_LONGEST], "steps": ended.steps,
            "import_s": imported - started, "setup_s": ended.setup_s, "run_s": ended.run_s}


def _own_mb() -> float:
    """MiB that this process shares with none."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    main(time.monotonic())
    sys.stderr.flush()
    os._exit(0)  # threads of OpenHands would be waited for
