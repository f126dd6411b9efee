"""How a batch is cut into micro-batches, which data-parallel rank computes which, and how a micro-batch is laid out.

Whole rows are put together up to a number of tokens, the longest first, and micro-batches go to ranks, the largest
first, each to the rank with the least so far. All ranks get equally many, since those that share experts or layers
compute in step: what is missing is made up by stand-ins, each a masked row that changes nothing. Every rank derives the
same cut from the same batch.

Packed, rows lie end to end in one sequence [1, t], and a last row of padding fills it up. Otherwise rows are padded to
one length, [b, s].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import TrainBatch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """What layouts depend on, each of at most ``tokens`` tokens without padding. ``row_multiple`` divides the length
    that a row takes up in a pack (ranks that share sequences cut every row alike), ``multiple`` that of the whole;
    ``count_multiple`` the number of micro-batches."""

    tokens: int
    packed: bool
    multiple: int = 1
    row_multiple: int = 1
    count_multiple: int = 1


@dataclass(frozen=True, slots=True)
class Micro:
    """Some rows of a batch, laid out. M sampled tokens are to be judged.

    ``rows`` [R] of the batch (empty: a stand-in); ``ids`` and ``positions`` [b, s]. In a pack of P rows, padding
    counted as one: ``lengths`` [P] and ``starts`` [P + 1], the last of which is the pack's end; None where rows are
    padded. For each of the M tokens: ``at``, its place in the batch's flat arrays; ``row``, its row among ``rows``;
    ``target``, its id; ``before``, the position before it among those of the layout, sequence first: [s, b] flat.
    """

    rows: Indices
    ids: Indices
    positions: Indices
    lengths: Indices | None
    starts: Indices | None
    at: Indices
    row: Indices
    target: Indices
    before: Indices


def share(batch: TrainBatch, layout: Layout, *, rank: int, ranks: int) -> list[Micro]:
    """The micro-batches of data-parallel rank ``rank``, as many as every other rank has."""
    parts = cut(np.diff(batch.offsets).tolist(), layout)
    loads, shares = [0] * ranks, [[] for _ in range(ranks)]
    for rows, cost in sorted(parts, key=lambda part: -part[1]):
        least = loads.index(min(loads))
        loads[least] += cost
        shares[least].append(rows)
    most = _up_to(max(map(len, shares)), layout.count_multiple)
    laid = [lay_out(batch, rows, layout) for rows in shares[rank]]
    return laid + [_stand_in(layout) for _ in range(most - len(laid))]


def cut(lengths: list[int], layout: Layout) -> list[tuple[list[int], int]]:
    """Rows of each micro-batch and the tokens it takes. A row longer than the limit makes one of its own."""
    parts: list[tuple[list[int], int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place, cost = None, lengths[row]
        if layout.packed:
            fitting = (number for number, (_, held) in enumerate(parts) if held + lengths[row] <= layout.tokens)
            if (place := next(fitting, None)) is not None:
                cost += parts[place][1]
        elif parts and longest * (len(parts[-1][0]) + 1) <= layout.tokens:
            place, cost = len(parts) - 1, longest * (len(parts[-1][0]) + 1)
        if place is None:
            parts.append(([row], cost))
            longest = lengths[row]
        else:
            parts[place] = ([*parts[place][0], row], cost)
    return parts


def lay_out(batch: TrainBatch, chosen: list[int], layout: Layout) -> Micro:
    rows = np.array(chosen, np.int64)
    lengths = np.diff(batch.offsets)[rows]
    row = np.repeat(np.arange(len(rows)), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = batch.offsets[rows][row] + within
    judged = batch.token_mask[at] & (within > 0)
    known = rows, at[judged], row[judged], batch.ids[at[judged]].astype(np.int64)
    return (_pack if layout.packed else _pad)(batch.ids[at], row, within, lengths, judged, known, layout)


_Known = tuple[Indices, Indices, Indices, Indices]


def _pack(ids: npt.NDArray[np.int32], row: Indices, within: Indices, lengths: Indices, judged: npt.NDArray[np.bool_],
          known: _Known, layout: Layout) -> Micro:
    room = -(-lengths // layout.row_multiple) * layout.row_multiple
    starts = np.concatenate(([0], np.cumsum(room)))
    if padding := _up_to(int(starts[-1]), layout.multiple) - int(starts[-1]):
        lengths, starts = np.append(lengths, padding), np.append(starts, starts[-1] + padding)
    laid, positions = np.zeros(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
    where = starts[row] + within
    laid[where], positions[where] = ids, within
    rows, at, row_of, target = known
    return Micro(rows, laid[None], positions[None], lengths, starts, at, row_of, target, where[judged] - 1)


def _pad(ids: npt.NDArray[np.int32], row: Indices, within: Indices, lengths: Indices, judged: npt.NDArray[np.bool_],
         known: _Known, layout: Layout) -> Micro:
    laid = np.zeros((len(lengths), _up_to(int(lengths.max()), layout.multiple)), np.int64)
    laid[row, within] = ids
    positions = np.broadcast_to(np.arange(laid.shape[1]), laid.shape).copy()
    rows, at, row_of, target = known
    before = (within[judged] - 1) * len(lengths) + row_of
    return Micro(rows, laid, positions, None, None, at, row_of, target, before)


def _stand_in(layout: Layout) -> Micro:
    """One row of two tokens that stands in no batch; the second is judged, and masked."""
    none, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    known = none, none, one, one
    make = _pack if layout.packed else _pad
    return make(np.zeros(2, np.int32), np.zeros(2, np.int64), np.arange(2), np.array([2]), np.array([False, True]),
                known, layout)


def _up_to(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
