"""What run_tests.sh runs: one pytest command, which the hardened grading runs in its own way."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_IGNORED = re.compile(r"\s*(#.*|set\s+-[a-z]+.*|cd\s+/testbed/?\s*)?")
_OPERATORS = frozenset("();<>|&")
_WITH_VALUE = frozenset({"-W", "-X"})


class CommandError(ValueError):
    """The script is not one that runs pytest once."""


@dataclass(frozen=True, slots=True)
class Command:
    """``flags`` are the interpreter's, ``arguments`` pytest's."""

    env: dict[str, str]
    interpreter: str
    flags: tuple[str, ...]
    arguments: tuple[str, ...]


def parse(script: str) -> Command:
    """The command of a script; CommandError where it does anything else."""
    lines = [line for line in script.splitlines() if not _IGNORED.fullmatch(line)]
    if len(lines) != 1:
        raise CommandError(f"it has {len(lines)} commands")
    try:
        lexer = shlex.shlex(lines[0], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if any(set(word) <= _OPERATORS or "$" in word or "`" in word for word in words):
        raise CommandError("it needs a shell")
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        raise CommandError("it runs nothing")
    program = words.pop(0)
    name = posixpath.basename(program)
    if name in ("pytest", "py.test"):
        return Command(env, posixpath.join(posixpath.dirname(program), "python"), (), tuple(words))
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] != "-m":
        flags.append(words.pop(0))
        if flags[-1] in _WITH_VALUE and words:
            flags.append(words.pop(0))
    if not re.fullmatch(r"python[0-9.]*", name) or words[:2] != ["-m", "pytest"]:
        raise CommandError("it runs something other than pytest")
    return Command(env, program, tuple(flags), tuple(words[2:]))
