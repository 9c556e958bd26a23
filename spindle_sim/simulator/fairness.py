"""Max-min fair rates of concurrent streams over shared links, by progressive filling.

A pure function: all rates rise together; where a link is full, the streams on it keep their rate
and the others rise on. No stream can then gain without a stream of equal or smaller rate losing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

__all__ = ["Loads", "fair_rates"]

Loads = tuple[tuple[int, float], ...]  # (link, bytes on it per byte of the stream's progress)


@dataclass(slots=True)
class _Link:
    """What is left of a link while rates rise."""

    left: float
    load: float = 0.0  # of the streams that still rise
    rising: int = 0


def fair_rates(
    loads: Sequence[Loads], capacities: Sequence[float], limits: Sequence[float]
) -> list[float]:
    """Give the rate of each stream, in units of its own progress per second.

    `limits` are the most that each stream takes, alone or not (infinity where nothing else limits
    it). O(E log E) for E pairs of stream and link.
    """
    links: dict[int, _Link] = {}
    users: dict[int, list[int]] = {}
    for stream, uses in enumerate(loads):
        for link, load in uses:
            if link not in links:
                links[link] = _Link(capacities[link])
                users[link] = []
            links[link].load += load
            links[link].rising += 1
            users[link].append(stream)
    rates = [inf] * len(loads)
    # Links before limits among equals; the level of a link only rises while others are fixed, so an
    # entry that is out of date is too low, and is put back with its present level.
    heap = [(item.left / item.load, 0, link) for link, item in links.items()]
    heap += [(limit, 1, stream) for stream, limit in enumerate(limits) if limit < inf]
    heapify(heap)
    fixed = [False] * len(loads)
    while heap:
        level, is_limit, index = heappop(heap)
        if is_limit:
            rising = [] if fixed[index] else [index]
        else:
            item = links[index]
            if not item.rising:
                continue
            present = item.left / item.load
            if present > level:
                heappush(heap, (present, 0, index))
                continue
            rising = [stream for stream in users[index] if not fixed[stream]]
        for stream in rising:
            fixed[stream] = True
            rates[stream] = level
            for link, load in loads[stream]:
                item = links[link]
                item.left -= level * load
                item.load -= load
                item.rising -= 1
    return rates
