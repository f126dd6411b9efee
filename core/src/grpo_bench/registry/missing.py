"""What a plan finds missing on this machine: gathered, so that one look shows all of it.

A part that is asked something it cannot answer raises :class:`grpo_bench.contract.Missing`; the plan goes on without
that answer. Whoever is asked next may depend on it: its error then says nothing of its own, and becomes a line that
says what was not judged and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..contract import GrpoBenchError, Missing

Answer = TypeVar("Answer")


class Shortage:
    """All that is missing so far, and what could not be judged without it."""

    def __init__(self) -> None:
        self._missing: list[str] = []
        self._unjudged: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each thing, what was not judged last."""
        return tuple(dict.fromkeys([*self._missing, *self._unjudged]))

    def ask(self, question: Callable[[], Answer], of: str = "", *, without: Sequence[str] = (),
            lenient: bool = False) -> Answer | None:
        """The answer; None where something is missing for it. ``of`` says who is asked, ``without`` what is known to be
        missing there. Errors of other kinds are raised, but where that or another thing that is missing (``lenient``)
        may be their cause."""
        try:
            return question()
        except Missing as error:
            prefix, hint = f"{of}: " if of else "", f" ({error.hint})" if error.hint else ""
            self._missing += [f"{prefix}{item}{hint}" for item in error.items]
        except GrpoBenchError:
            if not (without or lenient):
                raise
            without = without or ["what is missing"]
        if without:
            self.leave(of, *without)
        return None

    def leave(self, of: str, *without: str) -> None:
        """Say that something is not judged."""
        self._unjudged.append(f"not judged: {of}, without {' and '.join(without)}")


def lacking(profile: str, lines: Sequence[str]) -> Missing:
    """The one error that says all that a profile lacks here."""
    if len(lines) == 1:
        return Missing(lines[0])
    listed = "".join(f"\n    {line}" for line in lines)
    return Missing(f"this machine lacks what profile {profile!r} needs:{listed}", items=lines)
