"""Programs that are asked something: what they print, or an error that says what went wrong and for how long it may."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from grpo_bench.contract import PlanError

_SHOWN = 300


def answer(command: Sequence[str], of: str, deadline_s: float, env: Mapping[str, str], hint: str = "") -> str:
    """What ``command`` prints; PlanError that begins with ``of`` where it fails or takes longer than it may, with a
    ``hint`` at why. Afterwards nothing that it started is left."""
    words = " ".join(command[:3])
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", env=dict(env), start_new_session=True)
    except OSError as error:
        raise PlanError(f"{of}: {command[0]} cannot be started: {error.strerror}",
                        hint=f"{command[0]} has to be on PATH, or name a topology file in hardware.topology") from None
    with process:
        try:
            printed, said = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise PlanError(f"{of}: {words} gave no answer within {deadline_s:g} s", hint=hint) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        raise PlanError(f"{of}: {words} failed with exit code {process.returncode}: {last[:_SHOWN]}",
                        hint=hint)
    return printed
