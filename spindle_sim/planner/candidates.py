"""Groups of free devices worth considering for one slice (section 3.5): within islands first.

A device group is made of units, aligned runs of `tp` devices, so that a tensor-parallel group never
spans islands and a device has the same shard of everything.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["best_units", "strided"]

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
_FAR = 1e18  # stands for infinity where sums of it must stay comparable


def best_units(scores: Floats, count: int, num_islands: int) -> list[tuple[int, ...]]:
    """Give groups of `count` units with low scores, one a row of `scores` (row x unit).

    A unit of infinite score isn't free. A group lies in one island where an island has room, and
    otherwise in as few islands as possible. Rows for which too few units are free give none.
    """
    rows = scores.reshape(len(scores), num_islands, -1)
    size = rows.shape[2]
    order = np.argsort(rows, axis=2, kind="stable")
    ranked = np.minimum(np.take_along_axis(rows, order, axis=2), _FAR)
    free = (ranked < _FAR).sum(axis=2)
    sums = ranked.cumsum(axis=2)
    groups: dict[tuple[int, ...], None] = {}
    for row in range(len(scores)):
        if int(free[row].sum()) < count:
            continue
        taken: list[int] = []
        for island, taking in _islands(sums[row], free[row].copy(), count, size):
            taken += (island * size + order[row, island, :taking]).tolist()
        groups[tuple(sorted(taken))] = None
    return list(groups)


def strided(positions: Sequence[int], count: int) -> tuple[int, ...]:
    """Give `count` of the positions, evenly spread: samples stay where they are in a shrink."""
    return tuple(positions[i * len(positions) // count] for i in range(count))


def _islands(sums: Floats, left: Ints, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Give islands and how many units to take of each: the cheapest that need fewest islands.

    `sums[i, k]` is the score of the k + 1 best units of island i, of which `left[i]` are free.
    """
    if count >= size:
        whole = np.flatnonzero(left == size)
        cheapest = whole[np.argsort(sums[whole, -1], kind="stable")[: count // size]]
        for island in cheapest.tolist():
            yield island, size
        left[cheapest] = 0
        count -= size * len(cheapest)
    while count:
        with_room = np.flatnonzero(left >= count)
        if len(with_room):
            # Of equals the one with least room, so that larger groups still find an island.
            best = with_room[np.lexsort((left[with_room], sums[with_room, count - 1]))[0]]
            yield int(best), count
            return
        most = int(left.max())
        widest = np.flatnonzero(left == most)
        island = int(widest[int(np.argmin(sums[widest, most - 1]))])
        yield island, most
        left[island] = 0
        count -= most
