"""The task side: families of small programs, faults, tests and splits, all made from a seed."""

from .families import FAMILIES
from .generate import SOLUTION, VISIBLE_TEST, Problem, as_task, draw, make_task, tasks
from .grammar import Edit
from .structure import SPLITS, bucket, structure

__all__ = [
    "FAMILIES", "SOLUTION", "SPLITS", "VISIBLE_TEST", "Edit", "Problem", "as_task", "bucket", "draw", "make_task",
    "structure", "tasks",
]
