"""How batches are cut and laid out for Megatron."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from grpo_bench.contract import TrainBatch
from grpo_bench_trainer_megatron.batches import Layout, Micro, cut, share
from grpo_bench_trainer_megatron.forward import local_positions
from grpo_bench_trainer_megatron.ranks import Place

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def make_batch(lengths) -> TrainBatch:
    """Ids are unique, so that each tells where it comes from; every other token is sampled."""
    offsets = np.cumsum([0, *lengths])
    total = int(offsets[-1])
    zeros, rows = np.zeros(total, np.float32), np.zeros(len(lengths), np.float32)
    return TrainBatch(
        step=1, ids=np.arange(1, total + 1, dtype=np.int32), offsets=offsets,
        rollout=np.arange(len(lengths), dtype=np.int32), token_mask=np.arange(total) % 2 == 1,
        gen_log_probabilities=zeros, sample_mask=rows + 1, advantages=rows, rewards=rows, prev_log_probabilities=None,
        n_tokens=1.0, n_sequences=float(len(lengths)))


def judged(micro: Micro):
    """The ids of the judged tokens, and of those that the layout has before them."""
    flat = micro.ids.T.ravel()  # sequence first
    return micro.target, flat[micro.before]


@given(LENGTHS, st.integers(1, 100), st.booleans(), st.integers(1, 5), st.sampled_from([1, 4]), st.integers(1, 3))
def test_every_sampled_token_is_judged_once_after_its_own_context(lengths, tokens, packed, ranks, row_multiple, even):
    batch = make_batch(lengths)
    layout = Layout(tokens, packed, multiple=2 * row_multiple, row_multiple=row_multiple, count_multiple=even)
    shares = [share(batch, layout, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(micros) for micros in shares}) == 1
    assert len(shares[0]) % even == 0
    starts = np.zeros(len(batch.ids), bool)
    starts[batch.offsets[:-1]] = True
    seen = []
    for micro in (micro for micros in shares for micro in micros):
        assert micro.ids.shape == micro.positions.shape
        assert micro.ids.shape[1] % layout.multiple == 0
        target, before = judged(micro)
        if not len(micro.rows):
            assert len(target) == 1
            continue
        assert np.array_equal(target, batch.ids[micro.at])
        assert np.array_equal(before, target - 1)
        assert np.array_equal(micro.rows[micro.row], np.searchsorted(batch.offsets, micro.at, "right") - 1)
        seen.extend(micro.at.tolist())
    assert sorted(seen) == np.flatnonzero(batch.token_mask & ~starts).tolist()


@given(LENGTHS, st.integers(1, 100), st.booleans())
def test_micro_batches_keep_to_their_tokens_as_far_as_whole_rows_allow(lengths, tokens, packed):
    parts = cut(lengths, Layout(tokens, packed))
    assert sorted(row for rows, _ in parts for row in rows) == list(range(len(lengths)))
    for rows, cost in parts:
        chosen = [lengths[row] for row in rows]
        assert cost == (sum(chosen) if packed else max(chosen) * len(chosen))
        assert cost <= tokens or len(rows) == 1


def test_packed_rows_and_their_padding_are_bounded():
    micro, = share(make_batch([3, 5]), Layout(100, True, multiple=8, row_multiple=4), rank=0, ranks=1)
    assert micro.starts is not None and micro.lengths is not None
    assert micro.starts.tolist() == [0, 8, 12, 16]
    assert micro.lengths.tolist() == [5, 3, 4]
    assert micro.ids[0].tolist() == [4, 5, 6, 7, 8, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0]
    assert micro.positions[0, :12].tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_sequences_cover_every_position_once_from_both_ends(ranks):
    layout = Layout(1000, True, multiple=2 * ranks, row_multiple=2 * ranks)
    micro, = share(make_batch([5, 17, 30]), layout, rank=0, ranks=1)
    place = Place(0, ranks, 0, 1, 0, 0, ranks, True, device=None)  # type: ignore[arg-type]
    parts = [local_positions(micro, replace(place, context=context)) for context in range(ranks)]
    assert all(len(part) == micro.ids.size // ranks for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(micro.ids.size))
    assert micro.starts is not None
    assert {int(parts[0][0]), int(parts[0][-1])} <= {int(micro.starts[0]), int(micro.starts[-1]) - 1}
