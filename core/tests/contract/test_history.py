"""The canonical history of runs that were resumed."""

from __future__ import annotations

from typing import Any

from grpo_bench.contract import Event, Kind, canonical, settings_of, timeless

START: tuple[Kind, int | None, dict[str, Any]] = (Kind.RUN_STARTED, None, {"run": "r", "settings": {"a": 1}})


def history(*lines: tuple[Kind, int | None, dict[str, Any]]) -> list[Event]:
    return [Event(seq, "now", float(seq), kind, step, data) for seq, (kind, step, data) in enumerate(lines)]


def step(number: int) -> tuple[Kind, int | None, dict[str, Any]]:
    return Kind.STEP, number, {"seconds": 0.1}


def resumed(from_step: int, from_seq: int, **more: Any) -> tuple[Kind, int | None, dict[str, Any]]:
    return Kind.RESUMED, None, {"from_step": from_step, "from_seq": from_seq, "attempt": 2, "forced": [], **more}


SAVED: tuple[Kind, int | None, dict[str, Any]] = (Kind.CHECKPOINT, 1, {})
SETTING_UP: tuple[Kind, int | None, dict[str, Any]] = (Kind.REFIT, None, {})


def shapes(events: list[Event]) -> list[tuple[int, str, int | None]]:
    return [(event.seq, event.kind, event.step) for event in events]


def test_what_came_after_the_checkpoint_and_the_set_up_are_left_out() -> None:
    straight = history(START, step(1), SAVED, step(2), step(3))
    cut = history(START, step(1), SAVED, step(2), resumed(1, 3), SETTING_UP, SETTING_UP, step(2), step(3))
    assert shapes(canonical(cut)) == shapes(straight)
    assert timeless(cut) == timeless(straight)


def test_without_a_checkpoint_all_but_the_first_event_is_done_again() -> None:
    cut = history(START, SETTING_UP, step(1), resumed(0, 1), SETTING_UP, step(1))
    assert shapes(canonical(cut)) == shapes(history(START, SETTING_UP, step(1)))


def test_the_latest_resumption_counts() -> None:
    cut = history(START, step(1), SAVED, step(2), resumed(1, 3), SETTING_UP, step(2), (Kind.CHECKPOINT, 2, {}), step(3),
                  resumed(2, 8), SETTING_UP, resumed(1, 3), SETTING_UP, step(2), step(3))
    assert shapes(canonical(cut)) == shapes(history(START, step(1), SAVED, step(2), step(3)))


def test_an_attempt_that_failed_while_it_was_set_up_adds_nothing() -> None:
    cut = history(START, step(1), SAVED, resumed(1, 3), SETTING_UP, (Kind.ERROR, None, {}), (Kind.RUN_ENDED, None, {}))
    assert shapes(canonical(cut)) == shapes(history(START, step(1), SAVED))


def test_the_order_in_which_rollouts_ended_does_not_count() -> None:
    def rollout(group: int, index: int) -> tuple[Kind, int | None, dict[str, Any]]:
        return Kind.ROLLOUT, 1, {"purpose": "train", "group_id": group, "rollout_id": f"t{group}.{index}"}

    one, other = (Kind.GROUP, 1, {"group_id": 1}), (Kind.GROUP, 1, {"group_id": 2})
    left = history(START, rollout(1, 10), rollout(1, 9), rollout(2, 0), other, one, step(1))
    right = history(START, rollout(1, 9), rollout(2, 0), rollout(1, 10), one, other, step(1))
    assert timeless(left) == timeless(right)
    assert timeless(left) != timeless(history(START, rollout(1, 9), rollout(2, 1), rollout(1, 10), one, other, step(1)))


def test_the_settings_are_those_of_the_latest_attempt() -> None:
    assert settings_of(history(START, resumed(0, 1))) == {"a": 1}
    assert settings_of(history(START, resumed(0, 1, settings={"a": 2}), resumed(0, 1))) == {"a": 2}
