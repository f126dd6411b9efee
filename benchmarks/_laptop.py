"""The command line's answers about the laptop profile, for benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def asked(verb: str, *options: str) -> dict[str, Any]:
    """What the verb says of the profile, as its JSON; whatever its exit code."""
    command = [sys.executable, "-m", "grpo_bench", verb, "--profile", "laptop", *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1])
