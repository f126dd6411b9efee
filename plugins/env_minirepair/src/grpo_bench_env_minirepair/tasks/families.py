"""All families, in the order in which they take turns; the order is part of what a task's index means."""

from __future__ import annotations

from .families_lists import Aggregate, Collect, Comprehension, Either, Fold, Search, TakeWhile
from .families_numbers import Branches, Countdown, Digits, Formula, Labels, Range, Repeat, Span
from .families_order import Best, Neighbours, Running, Sorting
from .families_tables import Pairs, Rows, Table
from .families_text import Letters, Select, Tally, Words
from .grammar import Family

FAMILIES: tuple[Family, ...] = (
    Fold(), Collect(), Comprehension(), Aggregate(), Search(), Neighbours(), Best(), TakeWhile(), Either(), Running(),
    Sorting(), Branches(), Labels(), Range(), Countdown(), Digits(), Formula(), Repeat(), Span(), Words(), Letters(),
    Tally(), Select(), Pairs(), Table(), Rows(),
)
