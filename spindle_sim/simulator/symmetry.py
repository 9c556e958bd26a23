"""Traffic that is alike, simulated once: equal messages as one demand, equal links as one link.

Both for plans that repeat (`crews.repeats`). That equal links are one changes nothing: they carry
the same at all times. Equal messages of one boundary that go over different links go together, at
the rate of the slowest; so they do anyway unless something else crosses the way of a few.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spindle_sim.simulator.network import Demand

__all__ = ["coalesced", "distinct_links", "on_links"]


def coalesced(demands: Sequence[Demand]) -> tuple[tuple[Demand, ...], tuple[int, ...]]:
    """Join demands of equal size, latency and limit; give for each of `demands` which it is in."""
    joined: dict[tuple[float, float, float], dict[int, float]] = {}
    numbers: dict[tuple[float, float, float], int] = {}
    place = []
    for demand in demands:
        key = demand.size_bytes, demand.latency_s, demand.limit_bytes_per_s
        place.append(numbers.setdefault(key, len(numbers)))
        loads = joined.setdefault(key, {})
        for link, load in demand.loads:
            loads[link] = loads.get(link, 0.0) + load
    found = tuple(
        Demand(
            size_bytes=size_bytes,
            latency_s=latency_s,
            loads=tuple(loads.items()),
            limit_bytes_per_s=limit,
        )
        for (size_bytes, latency_s, limit), loads in joined.items()
    )
    return found, tuple(place)


def distinct_links(demands: Iterable[Demand], capacities: Sequence[float]) -> frozenset[int]:
    """Give the links that stand for all: those of equal capacity and equal loads are one.

    `demands` are all that will ever be.
    """
    users: dict[int, list[tuple[int, float]]] = {}
    for number, demand in enumerate(demands):
        for link, load in demand.loads:
            users.setdefault(link, []).append((number, load))
    first: dict[tuple[float, tuple[tuple[int, float], ...]], int] = {}
    for link, loads in users.items():
        first.setdefault((capacities[link], tuple(loads)), link)
    return frozenset(first.values())


def on_links(demand: Demand, links: frozenset[int]) -> Demand:
    """Give a demand without its loads on other links."""
    return replace(demand, loads=tuple(use for use in demand.loads if use[0] in links))
