"""Which prompts are wanted, in flight, finished and consumed. Pure: no clock, no I/O, no tasks.

Prompts are numbered in training order; prompt number ``i`` (its ``group_id``) is meant for *target* ``i //
prompts_per_step``, the weight version at which step ``target + 1`` consumes it, and stands at ``(epoch, index)`` of
the task list. With max age ``a``, at version ``v`` the prompts of targets up to ``v + a`` may be under way.

    wanted --start--> in flight --finish--> finished --take--> consumed
       ^                                       |
       '------------- evict (too old) ---------'

A group whose oldest token is more than ``a`` versions behind its target is evicted: its prompt is wanted again for the
same target, ahead of new prompts. A step consumes exactly its own prompts, all of them, in prompt order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import Group, Position


@dataclass(frozen=True, slots=True)
class Ticket:
    """A prompt to start: ``attempt`` counts the evictions before it."""

    group_id: int
    position: Position
    target: int
    attempt: int


class GroupBuffer:
    """The state machine. ``tasks`` is the length of the task list; targets run from 0 to ``max_steps - 1``."""

    def __init__(self, *, prompts_per_step: int, max_age: int, max_steps: int, tasks: int) -> None:
        self.prompts_per_step = prompts_per_step
        self.max_age = max_age
        self.max_steps = max_steps
        self.tasks = tasks
        self._next_target = 0
        self._attempts: dict[int, int] = {}
        self._wanted: list[int] = []
        self._in_flight: set[int] = set()
        self._finished: dict[int, Group] = {}

    def advance(self, version: int) -> None:
        """The trainer is at ``version`` now: want the prompts of all targets that this opens."""
        last = min(version + self.max_age, self.max_steps - 1)
        for target in range(self._next_target, last + 1):
            self._wanted.extend(range(target * self.prompts_per_step, (target + 1) * self.prompts_per_step))
        self._next_target = max(self._next_target, last + 1)

    def start(self) -> Ticket | None:
        """The next prompt to start, evicted ones first, then in order; None where none is wanted."""
        if not self._wanted:
            return None
        group_id = self._wanted.pop(0)
        self._in_flight.add(group_id)
        target = group_id // self.prompts_per_step
        return Ticket(group_id, self.position(group_id), target, self._attempts.get(group_id, 0))

    def finish(self, group: Group) -> bool:
        """Take in a finished group; False where it is too old and its prompt is wanted again."""
        self._in_flight.remove(group.group_id)
        if group.target - group.oldest_version > self.max_age:
            self._attempts[group.group_id] = self._attempts.get(group.group_id, 0) + 1
            again = [item for item in self._wanted if self._attempts.get(item)]
            self._wanted[len(again):len(again)] = [group.group_id]
            return False
        self._finished[group.group_id] = group
        return True

    def ready(self, target: int) -> bool:
        """Whether all prompts of ``target`` are finished."""
        return all(group_id in self._finished for group_id in self._prompts(target))

    def missing(self, target: int) -> list[int]:
        """The prompts of ``target`` that are not finished."""
        return [group_id for group_id in self._prompts(target) if group_id not in self._finished]

    def take(self, target: int) -> list[Group]:
        """Consume the prompts of ``target``, in prompt order; only when ``ready``."""
        groups = [self._finished.pop(group_id) for group_id in self._prompts(target)]
        for group in groups:
            self._attempts.pop(group.group_id, None)
        return groups

    def position(self, group_id: int) -> Position:
        """Where a prompt stands in the training order."""
        return Position(*divmod(group_id, self.tasks))

    @property
    def in_flight(self) -> frozenset[int]:
        return frozenset(self._in_flight)

    def snapshot(self) -> dict[str, Any]:
        """All that :meth:`restore` needs, as values of the contract; prompts in flight become wanted ones."""
        attempts = {str(key): value for key, value in self._attempts.items()}
        return {"next_target": self._next_target, "attempts": attempts,
                "wanted": sorted(self._in_flight) + self._wanted,
                "finished": [self._finished[key] for key in sorted(self._finished)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next_target = state["next_target"]
        self._attempts = {int(key): value for key, value in state["attempts"].items()}
        self._wanted = list(state["wanted"])
        self._in_flight = set()
        self._finished = {group.group_id: group for group in state["finished"]}

    def _prompts(self, target: int) -> range:
        return range(target * self.prompts_per_step, (target + 1) * self.prompts_per_step)
