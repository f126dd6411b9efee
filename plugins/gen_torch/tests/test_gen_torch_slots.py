"""Placing prompts in cache slots."""

from __future__ import annotations

import numpy as np

from grpo_bench_gen_torch.slots import SlotTable


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def finish(table, place, *sequence):
    place.slot.written = len(sequence)
    table.release(place.slot, tokens(*sequence))


def place(table, ids, affinity):
    found = table.place(ids, affinity)
    assert found is not None
    return found


def test_a_next_turn_goes_on_in_its_slot():
    table = SlotTable(3)
    first = place(table, tokens(1, 2, 3), "g")
    finish(table, first, 1, 2, 3, 4)
    second = place(table, tokens(1, 2, 3, 4, 5, 6), "g")
    assert (second.slot, second.donor, second.shared) == (first.slot, None, 4)


def test_a_group_shares_its_prompt_once_that_is_computed():
    table = SlotTable(3)
    leader = place(table, tokens(1, 2, 3), "g")
    assert leader.shared == 0
    assert table.place(tokens(1, 2, 3), "g") is None
    leader.slot.written = 3
    follower = place(table, tokens(1, 2, 3), "g")
    assert (follower.donor, follower.shared) == (leader.slot, 2)
    assert follower.slot is not leader.slot


def test_other_groups_share_nothing():
    table = SlotTable(2)
    finish(table, place(table, tokens(1, 2, 3), "g"), 1, 2, 3)
    assert place(table, tokens(1, 2, 3), "h").shared == 0


def test_a_branch_leaves_its_donor_alone():
    table = SlotTable(2)
    first = place(table, tokens(1, 2, 3), "g")
    finish(table, first, 1, 2, 3, 4, 5)
    branch = place(table, tokens(1, 2, 9), "g")
    assert (branch.donor, branch.shared) == (first.slot, 2)
    back = place(table, tokens(1, 2, 3, 4, 5, 6), "g")
    assert (back.slot, back.shared) == (first.slot, 5)


def test_the_slot_unused_for_longest_is_given_up():
    table = SlotTable(2)
    old, new = place(table, tokens(1), "a"), place(table, tokens(2), "b")
    finish(table, new, 2)
    finish(table, old, 1)
    assert place(table, tokens(3), "c").slot is new.slot
    assert place(table, tokens(2, 4), "b").shared == 0


def test_busy_slots_are_not_given_up():
    table = SlotTable(1)
    taken = place(table, tokens(1, 2), "a")
    assert table.place(tokens(3), "b") is None
    finish(table, taken, 1, 2)
    assert place(table, tokens(3), "b").slot is taken.slot


def test_the_only_idle_slot_can_be_cut_back_to_what_it_shares():
    table = SlotTable(1)
    finish(table, place(table, tokens(1, 2, 3), "g"), 1, 2, 3, 4)
    branch = place(table, tokens(1, 2, 9), "g")
    assert (branch.donor, branch.shared) == (None, 2)


def test_nothing_is_shared_after_the_weights_changed():
    table = SlotTable(2)
    finish(table, place(table, tokens(1, 2, 3), "g"), 1, 2, 3)
    table.forget_all()
    assert place(table, tokens(1, 2, 3), "g").shared == 0
