"""How long the command line takes to answer, beside an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from . import Result, seconds

_MAIN = "from grpo_bench.cli import main; import sys; sys.exit(main())"


def run() -> Iterator[Result]:
    bare = seconds(lambda: _call("-c", "pass"))
    for arguments in (["--help"], ["plugins", "list"]):
        taken = seconds(lambda given=arguments: _call("-c", _MAIN, *given))
        yield Result(f"grpo-bench {' '.join(arguments)}", taken, "python -c pass", bare)


def _call(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
