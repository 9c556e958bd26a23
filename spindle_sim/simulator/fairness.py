"""Max-min fair rates of concurrent streams over shared links, by progressive filling.

A pure function: all rates rise together; where a link is full, the streams on it keep their rate
and the others rise on. No stream can then gain without a stream of equal or smaller rate losing.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf

__all__ = ["Loads", "fair_rates"]

Loads = tuple[tuple[int, float], ...]  # (link, bytes on it per byte of the stream's progress)


def fair_rates(
    loads: Sequence[Loads],
    capacities: Mapping[int, float] | Sequence[float],
    limits: Sequence[float],
) -> list[float]:
    """Give the rate of each stream, in units of its own progress per second.

    `limits` are the most that each stream takes, alone or not (infinity where nothing else limits
    it). O(E log E) for E pairs of stream and link.
    """
    left: dict[int, float] = {}  # of a link's capacity, while rates rise
    rising: dict[int, float] = {}  # load of the streams that still rise
    users: dict[int, list[int]] = {}
    for stream, uses in enumerate(loads):
        for link, load in uses:
            if link in users:
                rising[link] += load
                users[link].append(stream)
            else:
                left[link], rising[link], users[link] = capacities[link], load, [stream]
    rates = [-1.0] * len(loads)
    # Links before limits among equals. The level of a link only rises while others are fixed, so an
    # entry that is out of date is too low, and is put back with its present level.
    heap = [(left[link] / load, 0, link) for link, load in rising.items()]
    heap += [(limit, 1, stream) for stream, limit in enumerate(limits) if limit < inf]
    heapify(heap)
    waiting = len(loads)
    while waiting:
        level, is_limit, index = heap[0]
        if is_limit:
            fixed = [index] if rates[index] < 0 else []
        else:
            fixed = [stream for stream in users[index] if rates[stream] < 0]
            present = left[index] / rising[index] if fixed else level
            if present > level:
                heapreplace(heap, (present, 0, index))
                continue
        heappop(heap)
        waiting -= len(fixed)
        for stream in fixed:
            rates[stream] = level
            for link, load in loads[stream]:
                left[link] -= level * load
                rising[link] -= load
    return rates
