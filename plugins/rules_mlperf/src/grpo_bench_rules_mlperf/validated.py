"""What an evaluation's validations say, held against the rules, against their rollouts and against earlier attempts.

A validation counts what its rollouts came to, and a refit to the weights of its step comes before it. An evaluation
that was interrupted goes on behind its last validation: what it says once it says for good, and rollouts that had
decided a validation before they were interrupted decide it still.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from grpo_bench.contract import End, Event, Finding, Kind

from .rules import Rules

_NEAR = 1e-5
"""How far a share may be from the one that its rollouts come to: rewards are summed as float32."""


def validation(rules: Rules, event: Event, evaluated: Sequence[Event]) -> Finding:
    """The verdict on one, given all that its evaluation did."""
    name, data, tasks, k = f"validation after step {event.step or 0}", event.data, rules.validation_tasks, rules.k
    if (data["tasks"], data["k"]) != (tasks, k):
        return Finding(name, False, f"{data['tasks']} tasks x {data['k']}; the rules want {tasks} x {k}")
    lost = sum(count for end, count in data["ends"].items() if not End(end).is_sample)
    if lost:
        return Finding(name, False, f"{lost} of {tasks * k} rollouts did not end normally")
    if (ended := sum(data["ends"].values())) != tasks * k:
        return Finding(name, False, f"{ended} rollouts ended, not {tasks * k}")
    if not _refitted(event, evaluated):
        return Finding(name, False, f"the generator got no weights of step {event.step or 0} before it")
    wrong = _disagreement(rules, event, [rollout for rollout in evaluated if rollout.kind == Kind.ROLLOUT
                                         and rollout.step == event.step and End(rollout.data["end"]).is_sample])
    return Finding(name, not wrong, wrong or f"{data['passed']} of {tasks} tasks solved")


def attempts(rules: Rules, evaluation: Sequence[Event], validations: Sequence[Event]) -> Finding:
    """The verdict on what interrupted attempts had found, given the whole evaluation and the validations that count."""
    counted = {event.step: event for event in validations}
    count = 1 + sum(event.kind == Kind.RESUMED for event in evaluation)
    wrong: list[str] = []
    cut: list[Event] = []
    for event in evaluation:
        if event.kind == Kind.ROLLOUT:
            cut.append(event)
        elif event.kind == Kind.VALIDATION:
            cut = []
            if event.step not in counted or event.data != counted[event.step].data:
                wrong.append(f"what a validation of step {event.step or 0} had said was left out")
        elif event.kind == Kind.RESUMED:
            for step in sorted({item.step or 0 for item in cut} & counted.keys()):
                if _missed(rules, [item for item in cut if item.step == step]) and (
                        counted[step].data["passed"] >= rules.needed(rules.validation_tasks)):
                    wrong.append(f"step {step} was interrupted when its rollouts had missed the target")
            cut = []
    return Finding("evaluation attempts", not wrong, "; ".join(wrong) or (
        "one" if count == 1 else f"{count}; none found otherwise what one before it had decided"))


def _refitted(event: Event, evaluated: Sequence[Event]) -> bool:
    """Whether the last refit before a validation was to the weights of its step."""
    before = [item.data["version"] for item in evaluated if item.kind == Kind.REFIT and item.seq < event.seq]
    return before[-1:] == [event.step] == [event.data["version"]]


def _groups(rollouts: Iterable[Event]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for rollout in rollouts:
        found.setdefault(rollout.data["group_id"], []).append(rollout)
    return found


def _is_success(rollout: Event) -> bool:
    return (rollout.data["reward"] or 0) > 0


def _missed(rules: Rules, rollouts: Iterable[Event]) -> bool:
    """Whether too many tasks have all their rollouts, and none that solved them."""
    samples = [rollout for rollout in rollouts if End(rollout.data["end"]).is_sample]
    unsolved = sum(len(group) >= rules.k and not any(map(_is_success, group)) for group in _groups(samples).values())
    return rules.validation_tasks - unsolved < rules.needed(rules.validation_tasks)


def _disagreement(rules: Rules, event: Event, rollouts: Sequence[Event]) -> str:
    """What is wrong with a validation's rollouts: each task has k, in one group, by the weights of that step."""
    groups, data = _groups(rollouts), event.data
    of = [{one.data["task_id"] for one in group} for group in groups.values()]
    whole = all(len(group) == rules.k for group in groups.values()) and all(len(tasks) == 1 for tasks in of)
    if not whole or len(groups) != rules.validation_tasks or len(set().union(*of)) != rules.validation_tasks:
        return f"its rollouts are not {rules.k} of each of {rules.validation_tasks} tasks"
    if other := sum(set(one.data["versions"]) != {event.step} for one in rollouts):
        return f"{other} of its rollouts came from other weights than those of step {event.step}"
    solved = sum(any(map(_is_success, group)) for group in groups.values())
    if solved != data["passed"]:
        return f"{data['passed']} tasks solved, by its rollouts {solved}"
    rewards = [one.data["reward"] for one in rollouts if one.data["reward"] is not None]
    for name, value in (("pass_k", solved / len(groups)), ("accuracy", math.fsum(rewards) / max(1, len(rewards)))):
        if not math.isclose(data["metrics"][name], value, rel_tol=_NEAR, abs_tol=_NEAR):
            return f"{name} {data['metrics'][name]:.6g}, by its rollouts {value:.6g}"
    return ""
