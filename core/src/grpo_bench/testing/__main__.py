"""The process in which ``grpo-bench plugins check`` runs a suite: ``python -m grpo_bench.testing REQUEST PIPE``.

REQUEST is JSON, see :class:`~grpo_bench.testing.checking.Request`; PIPE the file descriptor that results go to, a line
of JSON for each: ``{"begun": NAME}`` when a demand begins, ``{"name": ..., "outcome": ..., "reason": ...}`` when it
ends, and ``{"over": true}`` when none is left; or one ``{"wrong": ..., "hint": ...}`` where the request is. What pytest
and the plugin print is for whoever started this process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ..contract import InputError, Role
from ..registry import load_plugin
from .checking import FAILED, KNOWN, OK, SKIPPED
from .world import configured


class Recorder:
    """A plugin of pytest that leaves out the demands that are done and reports the others."""

    def __init__(self, done: frozenset[str], pipe: int) -> None:
        self._done = done
        self._pipe = pipe
        self._verdict = OK, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.name not in self._done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._verdict = OK, ""
        self._say({"begun": _name(nodeid)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed or report.when == "call":
            self._verdict = _told(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, reason = self._verdict
        self._say({"name": _name(nodeid), "outcome": outcome, "reason": reason})

    def _say(self, line: Mapping[str, Any]) -> None:
        os.write(self._pipe, json.dumps(line).encode() + b"\n")


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def _told(report: pytest.TestReport) -> tuple[str, str]:
    """A report's outcome and its reason in one line."""
    if known := getattr(report, "wasxfail", ""):
        return KNOWN, str(known)
    if report.skipped:
        return SKIPPED, report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    if report.passed:
        return OK, ""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    first = next((line.strip() for line in text.splitlines() if line.strip()), "failed")
    return FAILED, first.replace("[XPASS(strict)]", "listed as a known failure, but it passes:")


def main(argv: list[str]) -> int:
    faulthandler.enable()
    request, pipe = json.loads(argv[0]), int(argv[1])
    try:
        descriptor, _ = load_plugin(Role(request["role"]), request["name"])
        configured(descriptor, request["options"])
        load_plugin(Role.FABRIC, request["fabric"])
    except InputError as error:
        os.write(pipe, json.dumps({"wrong": error.message, "hint": error.hint}).encode() + b"\n")
        return 2
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    recorder = Recorder(frozenset(request["done"]), pipe)
    with tempfile.TemporaryDirectory(prefix="grpo-check-") as folder:
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        chosen = str(Path(__file__).with_name("chosen.py"))
        code = pytest.main([chosen, "-c", str(settings), "--rootdir", folder, "--basetemp", f"{folder}/tmp",
                            "--noconftest", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"],
                           plugins=[recorder])
    none_left = code == pytest.ExitCode.NO_TESTS_COLLECTED and request["done"]
    if none_left or code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        os.write(pipe, json.dumps({"over": True}).encode() + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
