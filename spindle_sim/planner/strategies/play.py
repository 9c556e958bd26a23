"""How long the micro-batches of a pipeline take: played through block by block.

In the order of the plan (`plan/pipeline.py`). Messages between stages are as on idle links where
links have little to carry. Else they queue: a NIC that several hops of a node share, or one that
takes longer over a micro-batch than its stages do, holds up everything behind it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from spindle_sim.plan.pipeline import Pipeline, pipeline_order, rank_order

__all__ = ["Hop", "play"]

# Links that are busy for a smaller part of a round than this hold hardly anything up.
_IDLE_SHARE = 0.2
# Of many micro-batches as many as so many times the ranks are played through: by then each more
# takes what the one before took.
_PLAYED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """What a micro-batch's way from one stage to another takes: of each link, seconds."""

    latency_s: float
    loads: tuple[tuple[int, float], ...]

    @property
    def alone_s(self) -> float:
        """How long it takes on idle links."""
        return self.latency_s + max((load_s for _, load_s in self.loads), default=0.0)


def play(
    shape: Pipeline,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    ahead: Sequence[Hop],
    *,
    back: Sequence[Hop],
    limit_s: float = inf,
) -> float:
    """Give when the last micro-batch has come back.

    Seconds are by stage; `ahead` are the hops to the next stage, `back` the same hops backwards.
    Where it is `limit_s` at least, any bound from there on will do.
    """
    each_s = max(
        sum(forward_s[rank :: shape.ranks]) + sum(backward_s[rank :: shape.ranks])
        for rank in range(shape.ranks)
    )
    busy, most_s = _busy_links((*ahead, *back), each_s * _IDLE_SHARE)
    if shape.micro_batches * most_s >= limit_s:
        return shape.micro_batches * most_s
    ahead_s, back_s = [hop.alone_s for hop in ahead], [hop.alone_s for hop in back]
    if not busy:
        return _played_s(shape, forward_s, backward_s, ahead_s, back_s=back_s)
    ways = [_Way.of(hop, busy) for hop in ahead], [_Way.of(hop, busy) for hop in back]
    rounds = shape.micro_batches // shape.ranks
    if rounds <= _PLAYED:
        return _queued_s(shape, forward_s, backward_s, ways)
    few, fewer = (
        _queued_s(
            replace(shape, micro_batches=shape.micro_batches - (rounds - played) * shape.ranks),
            forward_s,
            backward_s,
            ways,
        )
        for played in (_PLAYED, _PLAYED - 1)
    )
    return few + (rounds - _PLAYED) * (few - fewer)


def _busy_links(hops: Iterable[Hop], least_s: float) -> tuple[dict[int, int], float]:
    """Give the links that a micro-batch keeps busy for `least_s`, numbered; equal ones are one.

    And how long it keeps the busiest link busy.
    """
    users: dict[int, list[tuple[int, float]]] = {}
    for number, hop in enumerate(hops):
        for link, load_s in hop.loads:
            users.setdefault(link, []).append((number, load_s))
    known: dict[tuple[tuple[int, float], ...], int] = {}
    busy: dict[int, int] = {}
    most_s = 0.0
    for link, loads in users.items():
        total_s = sum([load_s for _, load_s in loads])
        most_s = max(most_s, total_s)
        if total_s >= least_s and tuple(loads) not in known:
            busy[link] = known.setdefault(tuple(loads), len(known))
    return busy, most_s


class _Way(NamedTuple):
    """A hop over busy links."""

    latency_s: float
    moving_s: float
    loads: tuple[tuple[int, float], ...]

    @staticmethod
    def of(hop: Hop, busy: dict[int, int]) -> "_Way":
        loads = tuple((busy[link], load_s) for link, load_s in hop.loads if link in busy)
        return _Way(hop.latency_s, hop.alone_s - hop.latency_s, loads)


def _queued_s(
    shape: Pipeline,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    ways: tuple[Sequence[_Way], Sequence[_Way]],
) -> float:
    """Play in the order of time: each busy link carries one message after the other."""
    ranks, last = shape.ranks, shape.ranks * shape.chunks - 1
    orders = [_rank_order(shape, rank) for rank in range(ranks)]
    reached, idle_s = [0] * ranks, [0.0] * ranks  # `idle_s` is -1 while the rank computes
    arrived: dict[tuple[int, int, bool], float] = {}
    links_s = [0.0] * (1 + max(link for own in ways for way in own for link, _ in way.loads))
    ends: list[tuple[float, int, int, int, bool]] = []
    waking = list(range(ranks))
    end_s = 0.0
    while True:
        for rank in waking:
            if idle_s[rank] < 0.0 or reached[rank] == len(orders[rank]):
                continue
            block, needs = orders[rank][reached[rank]]
            ready_s = arrived.pop(block, -1.0) if needs else 0.0
            if ready_s >= 0.0:
                stage, micro_batch, backward = block
                start_s = max(idle_s[rank], ready_s)
                lasts_s = backward_s[stage] if backward else forward_s[stage]
                heappush(ends, (start_s + lasts_s, rank, stage, micro_batch, backward))
                idle_s[rank] = -1.0
        if not ends:
            return end_s
        end_s, rank, stage, micro_batch, backward = heappop(ends)
        idle_s[rank] = end_s
        reached[rank] += 1
        waking = [rank]
        target = stage - 1 if backward else stage + 1
        if 0 <= target <= last:
            way = ways[1][target] if backward else ways[0][stage]
            begun_s = end_s + way.latency_s
            for link, _ in way.loads:
                begun_s = max(begun_s, links_s[link])
            for link, load_s in way.loads:
                links_s[link] = begun_s + load_s
            arrived[target, micro_batch, backward] = begun_s + way.moving_s
            waking = [target % ranks, rank]


@lru_cache(maxsize=4096)
def _rank_order(shape: Pipeline, rank: int) -> tuple[tuple[tuple[int, int, bool], bool], ...]:
    """Give the blocks of a rank, each with whether it takes something from another stage."""
    last = shape.ranks * shape.chunks - 1
    return tuple(
        ((stage, micro_batch, backward), stage != (last if backward else 0))
        for stage, micro_batch, backward in rank_order(shape, rank)
    )


def _played_s(
    shape: Pipeline,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    ahead_s: Sequence[float],
    *,
    back_s: Sequence[float],
) -> float:
    """Run all micro-batches through the pipeline, each hop taking the same time always."""
    free = [0.0] * shape.ranks
    ends: list[float] = []
    for rank, stage, backward, source in _steps(shape):
        start_s = free[rank]
        if source >= 0:
            start_s = max(
                start_s, ends[source] + (back_s[stage] if backward else ahead_s[stage - 1])
            )
        duration_s = backward_s[stage] if backward else forward_s[stage]
        free[rank] = start_s + duration_s
        ends.append(free[rank])
    return max(free)


@lru_cache(maxsize=256)
def _steps(shape: Pipeline) -> tuple[tuple[int, int, bool, int], ...]:
    """Give (rank, stage, backward, index of the step whose output it takes or -1), in an order."""
    last = shape.ranks * shape.chunks - 1
    place: dict[tuple[int, int, bool], int] = {}
    steps: list[tuple[int, int, bool, int]] = []
    for index, (stage, micro_batch, backward) in enumerate(pipeline_order(shape)):
        other = stage + 1 if backward else stage - 1
        source = place[other, micro_batch, backward] if 0 <= other <= last else -1
        place[stage, micro_batch, backward] = index
        steps.append((stage % shape.ranks, stage, backward, source))
    return tuple(steps)
