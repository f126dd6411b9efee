"""The official checker of ``mlperf-logging``, run inside this process with warnings as errors.

It reports through the root logger and keeps the configurations it still has to go through in a list of its module;
both are put back. Its messages are about keys: a verdict has one reason for each key that it refuses, and its own words
where a message is about no key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .rules import Rules

PACKAGE = "mlperf-logging"


@dataclass(frozen=True)
class Verdict:
    """``refused`` maps a key to why; what is about no key stands in ``other``."""

    refused: Mapping[str, str]
    other: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.refused and not self.other


def missing(rules: Rules) -> str:
    """Why the checker cannot be asked, empty where it can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        return f"{PACKAGE} {rules.checker} is not installed"
    return "" if found == rules.checker else f"{PACKAGE} {found} is installed, these rules are those of {rules.checker}"


def judge_log(file: Path, rules: Rules) -> Verdict:
    """What the checker says about a log; needs :func:`missing` to be empty."""
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", rules.checker_ruleset, quiet=False, werror=True)
    with _quiet():
        mlp_compliance.enqueued_configs.clear()
        try:
            checker.check_file(str(file), f"training_{rules.checker_ruleset}/common.yaml")
        except Exception as error:
            return Verdict({}, (f"the checker broke down: {type(error).__name__}: {error}",))
        finally:
            mlp_compliance.enqueued_configs.clear()
    refused = {key: _reason(message) for key, message in checker.overwritable.items()}
    other = []
    for message in checker.not_overwritable:
        if about := re.match(r"Failed checks for (\w+) : (.*)", message):
            refused.setdefault(about[1], f"never {about[2].strip()}")
        else:
            other.append(_reason(message))
    return Verdict(refused, tuple(other))


def _reason(message: str) -> str:
    """The one line of a message that says what is wrong."""
    failed = re.search(r"^failed test: (.*)$", message, re.MULTILINE)
    return failed[1].strip() if failed else message.splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that goes to the root logger is shown or kept."""
    root = logging.getLogger()
    handlers, silent = list(root.handlers), logging.NullHandler()
    for handler in handlers:
        root.removeHandler(handler)
    root.addHandler(silent)
    try:
        yield
    finally:
        root.removeHandler(silent)
        for handler in handlers:
            root.addHandler(handler)
