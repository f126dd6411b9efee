"""The official checkers of ``mlperf-logging``, run inside this process: of one log, of a benchmark's runs against the
reference's convergence points (RCP), and of a whole submission.

They report through the root logger, print, and keep the configurations they still have to go through in a list of a
module; all of that is put back. The RCP checker writes beside the logs that it reads, and gives copies of them its own
file names, so it gets a folder of its own. Messages of the first are about keys: a verdict has one reason for each key
that it refuses, and its own words where a message is about no key.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from .rules import Rules

PACKAGE = "mlperf-logging"
_SOUND = "PACKAGE CHECKER FOUND NO ERRORS"


@dataclass(frozen=True)
class Verdict:
    """``refused`` maps a key to why; what is about no key stands in ``other``."""

    refused: Mapping[str, str]
    other: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.refused and not self.other


@dataclass(frozen=True)
class Convergence:
    """What the RCP checker says, in its own words."""

    passed: bool
    words: str


def missing(rules: Rules) -> str:
    """Why the checkers cannot be asked, empty where they can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        return f"{PACKAGE} {rules.checker} is not installed"
    return "" if found == rules.checker else f"{PACKAGE} {found} is installed, these rules are those of {rules.checker}"


def judge_log(file: Path, rules: Rules) -> Verdict:
    """What the compliance checker says about a log, warnings as errors; needs :func:`missing` to be empty."""
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", rules.checker_ruleset, quiet=False, werror=True)
    with _alone():
        try:
            checker.check_file(str(file), f"training_{rules.checker_ruleset}/common.yaml")
        except Exception as error:
            return Verdict({}, (_broke_down(error),))
    refused = {key: _reason(message) for key, message in checker.overwritable.items()}
    other = []
    for message in checker.not_overwritable:
        if about := re.match(r"Failed checks for (\w+) : (.*)", message):
            refused.setdefault(about[1], f"never {about[2].strip()}")
        else:
            other.append(_reason(message))
    return Verdict(refused, tuple(other))


def judge_convergence(files: Sequence[Path], rules: Rules) -> Convergence:
    """What the RCP checker says about these runs of one system; needs :func:`missing` to be empty."""
    with TemporaryDirectory() as place, _alone():
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(place, f"result_{number}.txt"))
        try:
            from mlperf_logging.rcp_checker import rcp_checker
            passed, words, _ = rcp_checker.check_directory(
                place, "training", rules.checker_ruleset, verbose=False, bert_train_samples=False,
                rcp_pass="pruned_rcps", set_scaling=True)  # without it, it clears away a file of the root folder
        except Exception as error:
            return Convergence(False, _broke_down(error))
    return Convergence(bool(passed), words)


def judge_package(organisation: Path, rules: Rules) -> tuple[str, ...]:
    """What the package checker says against a submission, warnings as errors; nothing where it finds no errors. It may
    write into the folder. Needs :func:`missing` to be empty."""
    with _alone() as records:
        try:
            from mlperf_logging.package_checker import package_checker
            package_checker.check_training_package(
                str(organisation), "training", rules.checker_ruleset, quiet=False, werror=True, rcp_bypass=False,
                rcp_bert_train_samples=False, seed_checker_bypass=False, log_output="")
        except Exception as error:
            return (_broke_down(error),)
    said = [(record.levelno, record.getMessage().strip()) for record in records]
    if any(_SOUND in message for _, message in said):
        return ()
    where = f"{organisation}/"
    return tuple(message.replace(where, "") for level, message in said if level >= logging.ERROR) or ("found errors",)


def _broke_down(error: Exception) -> str:
    return f"the checker broke down: {type(error).__name__}: {error}"


def _reason(message: str) -> str:
    """The one line of a message that says what is wrong."""
    failed = re.search(r"^failed test: (.*)$", message, re.MULTILINE)
    return failed[1].strip() if failed else message.splitlines()[0]


class _Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


@contextlib.contextmanager
def _alone() -> Iterator[list[logging.LogRecord]]:
    """What goes to the root logger is kept here alone, and nothing that is printed is shown."""
    from mlperf_logging.compliance_checker import mlp_compliance

    root, records = logging.getLogger(), _Records()
    handlers, level = list(root.handlers), root.level
    root.handlers[:] = [records]
    root.setLevel(logging.INFO)
    mlp_compliance.enqueued_configs.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield records.kept
    finally:
        mlp_compliance.enqueued_configs.clear()
        root.handlers[:] = handlers
        root.setLevel(level)
