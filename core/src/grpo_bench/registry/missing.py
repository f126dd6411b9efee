"""What a plan finds missing on this machine: gathered, so that one look shows all of it.

A part that is asked something it cannot answer raises :class:`grpo_bench.contract.Missing`; the plan goes on without
that answer. Whoever is asked next may depend on it: its error then says nothing of its own, and becomes a line that
says what was not judged and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from ..contract import GrpoBenchError, InputError, Missing

Answer = TypeVar("Answer")


class Shortage:
    """All that is missing so far, and what could not be judged without it. ``known``: what is missing from the outset,
    by how whoever misses it for that reason calls it."""

    def __init__(self, known: Mapping[str, str] = MappingProxyType({})) -> None:
        self._known = tuple(known)
        self._missing: list[str] = list(known.values())
        self._unjudged: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each thing, what was not judged last."""
        return tuple(dict.fromkeys([*self._missing, *self._unjudged]))

    def ask(self, question: Callable[[], Answer], of: str = "", *, without: Sequence[str] = (), lenient: bool = False,
            instead: Callable[[Missing], Answer | None] = lambda _: None) -> Answer | None:
        """The answer; None where something is missing for it, unless what was said of that is an answer (``instead``).
        ``of`` says who is asked, ``without`` what is known to be missing there: it may make the one that is asked fail,
        but not refuse. Where it may refuse for the lack of something (``lenient``) that is no answer either."""
        try:
            return question()
        except Missing as error:
            prefix, hint = f"{of}: " if of else "", f" ({error.hint})" if error.hint else ""
            self._missing += [f"{prefix}{item}{hint}" for item in error.items
                              if not any(name in item for name in self._known)]
            if (answer := instead(error)) is not None:
                return answer
        except GrpoBenchError as error:
            if not lenient and (not without or isinstance(error, InputError)):
                raise
            without = without or ["what is missing"]
        if without:
            self.leave(of, *without)
        return None

    def leave(self, of: str, *without: str, partly: bool = False) -> None:
        """Say that something is not judged, or not all of it."""
        self._unjudged.append(f"{'judged in part' if partly else 'not judged'}: {of}, without {' and '.join(without)}")


def lacking(profile: str, lines: Sequence[str]) -> Missing:
    """The one error that says all that a profile lacks here."""
    if len(lines) == 1:
        return Missing(lines[0])
    listed = "".join(f"\n    {line}" for line in lines)
    return Missing(f"this machine lacks what profile {profile!r} needs:{listed}", items=lines)
