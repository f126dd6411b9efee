"""The command line: one file per verb.

Modules here import nothing heavy at the top, so that ``--help`` and the listings answer at once; a verb imports what it
needs when it runs. Exit codes: 0 done, 1 the run failed or missed its target, 2 the input was wrong, 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from . import check, compare, env, eval, plan, plugins, preflight, profiles, report, resume, run
from .options import Parser, Verbs

__all__ = ["main"]

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for them it reads every package's entry points,
# and one that cannot be read would end each command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a path may hold what the terminal's encoding has no sign for
    argv = sys.argv[1:] if argv is None else argv
    code = 0
    try:
        arguments = _parser(argv).parse_args(argv)
        code = arguments.verb(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("grpo-bench: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        _write_nowhere()
    except OSError as error:
        if not _full(error):
            raise
        _write_nowhere()
        print(f"grpo-bench: cannot write to stdout: {error.strerror}", file=sys.stderr)
        code = code or 1
    except Exception as error:
        code = _exit_code(error)
    return code


def _full(error: OSError) -> bool:
    """Whether it is stdout that has no room: an error of a file names the file."""
    return error.errno == errno.ENOSPC and error.filename is None


def _write_nowhere() -> None:
    """What stdout still holds has no reader: let the flush at the process's end not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(argv: Sequence[str]) -> Parser:
    from .. import __version__
    parser = Parser(prog="grpo-bench", description="Measures how long a GRPO stack takes to reach a target pass@k.")
    parser.add_argument("--version", action="version", version=f"grpo-bench {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for module in (run, resume, eval, plan, preflight, plugins, env, profiles, report, compare, check):
        module.add(verbs)
    if (asked := next((word for word in argv if not word.startswith("-")), "")) not in verbs.choices:
        _add_others(verbs, asked)
    return parser


def _add_others(verbs: Verbs, asked: str) -> None:
    """The verbs of installed distributions; only the one that is asked for is loaded."""
    from ..registry.verbs import fill_verb, installed_verbs
    found = [item for item in installed_verbs() if item.name not in verbs.choices]
    for name, summary in {item.name: item.summary for item in found}.items():
        parser = verbs.add_parser(name, help=summary)
        if name == asked:
            fill_verb(name, found, parser)


def _exit_code(error: Exception) -> int:
    """Say what is wrong in one message; an error nobody raised on purpose keeps its traceback."""
    from ..contract import GrpoBenchError, InputError
    if not isinstance(error, GrpoBenchError):
        raise error
    where = f" [{error.boundary}]" if str(error.boundary) else ""
    hint = f"\n  hint: {error.hint}" if error.hint else ""
    print(f"grpo-bench: {error.message}{where}{hint}", file=sys.stderr)
    return 2 if isinstance(error, InputError) else 1
