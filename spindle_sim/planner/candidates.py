"""Groups of free devices worth considering for one slice (section 3.5): within islands first.

A device group is made of units, aligned runs of `tp` devices, so that a tensor-parallel group never
spans islands and a device has the same shard of everything.
"""

from collections.abc import Sequence

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
    groups: dict[tuple[int, ...], None] = {}
    for row in range(len(scores)):
        if int(free[row].sum()) < count:
            continue
        taken: list[int] = []
        left = np.array(free[row])
        while len(taken) < count:
            missing = min(count - len(taken), size)
            island, taking = _next_island(ranked[row], left, missing)
            taken += (island * size + order[row, island, :taking]).tolist()
            left[island] = 0
        groups[tuple(sorted(taken))] = None
    return list(groups)


def strided(positions: Sequence[int], count: int) -> tuple[int, ...]:
    """Give `count` of the positions, evenly spread: samples stay where they are in a shrink."""
    return tuple(positions[i * len(positions) // count] for i in range(count))


def _next_island(ranked: Floats, left: Ints, missing: int) -> tuple[int, int]:
    """Give the island to take from next and how many units: the cheapest with room for all."""
    with_room = np.flatnonzero(left >= missing)
    if len(with_room):
        sums = ranked[with_room, :missing].sum(axis=1)
        # Of equals the one with least room, so that larger groups still find an island.
        best = np.lexsort((left[with_room], sums))[0]
        return int(with_room[best]), missing
    most = int(left.max())
    widest = np.flatnonzero(left == most)
    sums = ranked[widest, :most].sum(axis=1)
    return int(widest[int(np.argmin(sums))]), most
