"""The buffer under random schedules: nothing lost, nothing twice, age never above the bound, nobody starves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_bench.contract import (
    End, FinishReason, Group, Position, Purpose, TokenSequence, Trajectory, Turn,
)
from grpo_bench.engine import GroupBuffer, Ticket


def finished(ticket: Ticket, version: int) -> Group:
    """A group of one rollout whose only token was sampled at ``version``."""
    one = np.zeros(1, np.int32)
    turn = Turn(one, one, np.zeros(1, np.float32), ((1, version),), FinishReason.STOP)
    trajectory = Trajectory(f"{ticket.group_id}.{ticket.attempt}", ticket.group_id, "task", Purpose.TRAIN,
                            (TokenSequence((turn,)),), End.COMPLETED, 1.0)
    return Group(ticket.group_id, "task", ticket.position, ticket.target, (trajectory,))


def start_all(buffer: GroupBuffer) -> list[Ticket]:
    return list(iter(buffer.start, None))


@settings(deadline=None)
@given(data=st.data(), prompts=st.integers(1, 4), max_age=st.integers(0, 3), max_steps=st.integers(1, 8),
       tasks=st.integers(1, 9), restore=st.booleans())
def test_every_prompt_is_consumed_once_in_order_within_the_age_bound(data, prompts, max_age, max_steps, tasks, restore):
    def fresh():
        return GroupBuffer(prompts_per_step=prompts, max_age=max_age, max_steps=max_steps, tasks=tasks)

    buffer, consumed, running = fresh(), [], {}
    for version in range(max_steps):
        buffer.advance(version)
        running |= dict.fromkeys(start_all(buffer), version)
        while not buffer.ready(version):
            assert running, "the step waits for prompts that nobody runs"
            ticket = data.draw(st.sampled_from(sorted(running, key=lambda item: item.group_id)))
            started = running.pop(ticket)
            stale = data.draw(st.booleans()) and started >= 1
            sampled_at = data.draw(st.integers(0, started)) if stale else started
            if not buffer.finish(finished(ticket, sampled_at)):
                assert ticket.target - sampled_at > max_age
                running |= dict.fromkeys(start_all(buffer), version)
        groups = buffer.take(version)
        assert all(group.target - group.oldest_version <= max_age for group in groups)
        assert all(group.target == version for group in groups)
        consumed += [group.group_id for group in groups]
        if restore and data.draw(st.booleans()):
            state = buffer.snapshot()
            buffer = fresh()
            buffer.restore(state)
            running = dict.fromkeys(start_all(buffer), version + 1)
            if version + 1 >= max_steps:
                assert not running
    assert consumed == list(range(prompts * max_steps))
    assert not buffer.in_flight and not running


@pytest.mark.parametrize(("max_age", "opened"), [
    (0, [[0], [1], [2]]), (1, [[0, 1], [2], []]), (2, [[0, 1, 2], [], []])])
def test_targets_open_as_the_contract_says(max_age, opened):
    buffer = GroupBuffer(prompts_per_step=2, max_age=max_age, max_steps=3, tasks=100)
    for version, targets in enumerate(opened):
        buffer.advance(version)
        assert sorted({ticket.target for ticket in start_all(buffer)}) == targets


def test_an_evicted_prompt_goes_ahead_of_new_ones_for_the_same_target():
    buffer = GroupBuffer(prompts_per_step=2, max_age=1, max_steps=5, tasks=100)
    buffer.advance(0)
    first = start_all(buffer)
    buffer.advance(3)
    old = next(ticket for ticket in first if ticket.target == 1)
    assert buffer.finish(finished(old, 0)) is True
    late = start_all(buffer)[0]
    assert buffer.finish(finished(late, 0)) is False
    again = buffer.start()
    assert again is not None
    assert (again.group_id, again.target, again.attempt) == (late.group_id, late.target, 1)


def test_the_order_starts_again_at_the_end_of_the_task_list_and_a_step_may_span_it():
    buffer = GroupBuffer(prompts_per_step=3, max_age=0, max_steps=2, tasks=4)
    buffer.advance(0)
    buffer.advance(1)
    positions = [ticket.position for ticket in start_all(buffer)]
    assert positions == [Position(0, 0), Position(0, 1), Position(0, 2), Position(0, 3), Position(1, 0), Position(1, 1)]
