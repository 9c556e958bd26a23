"""The network as a fluid: streams that share links max-min fairly while they last.

Rates change only when a stream arrives or ends, and only for streams that it shares links with,
directly or through others. Everything that happens at one instant is settled at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

import simpy
from simpy.events import Event

from spindle_sim.simulator.fairness import Loads, fair_rates

__all__ = ["Demand", "Network"]

_LAST = 2  # simpy priority: after everything else of the same instant
_SAME_RATE = 1e-9  # relative
_SAME_INSTANT = 1e-12  # relative; two ends that differ by rounding only are one event


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """`size_bytes` to be moved once `latency_s` has passed.

    A link carries `load` bytes for each byte of progress; `limit_bytes_per_s` bounds the progress
    even on idle links.
    """

    size_bytes: float
    latency_s: float
    loads: Loads
    limit_bytes_per_s: float = inf


@dataclass(slots=True, eq=False)
class _Stream:
    """A demand under way."""

    number: int
    demand: Demand
    batch: "_Batch"
    position: int
    left_bytes: float
    rate: float = 0.0
    since_s: float = 0.0  # when `left_bytes` was true
    finish_s: float = inf
    settled: int = 0  # when it was last given a rate, counted in settlings
    loads: Loads = ()  # on the links that limit it


@dataclass(slots=True, eq=False)
class _Batch:
    """Demands that were handed in together: `event` tells when the last of them has ended."""

    event: Event
    ends_s: list[float]
    missing: int


@dataclass(slots=True)
class Network:
    """The links of one cluster and the streams on them."""

    env: simpy.Environment
    capacities: Sequence[float]
    recomputed: int = 0  # streams whose rate was worked out anew, for the benchmarks
    _users: dict[int, dict[int, tuple[_Stream, float]]] = field(default_factory=dict)
    _finishes: list[tuple[float, int, _Stream]] = field(default_factory=list)
    _touched: dict[int, bool] = field(default_factory=dict)  # whether a stream arrived on the link
    _least_ended: float = inf  # the lowest rate of a stream that has ended since
    _settling: bool = False
    _waking_s: float = inf
    _started: int = 0
    _settled: int = 0

    def transmit(self, demands: Sequence[Demand]) -> Event:
        """Start all demands now; the event succeeds with their end times when all have ended."""
        batch = _Batch(self.env.event(), [self.env.now] * len(demands), len(demands))
        if not demands:
            batch.event.succeed(batch.ends_s)
        by_latency: dict[float, list[int]] = {}
        for position, demand in enumerate(demands):
            by_latency.setdefault(demand.latency_s, []).append(position)
        for latency_s, positions in by_latency.items():
            arrivals = [(position, demands[position]) for position in positions]
            if latency_s > 0:
                self._after(latency_s, batch, arrivals)
            else:
                self._arrive(batch, arrivals)
        return batch.event

    def _after(self, latency_s: float, batch: _Batch, arrivals: list[tuple[int, Demand]]) -> None:
        timeout = self.env.timeout(latency_s)
        assert timeout.callbacks is not None, "a new timeout takes callbacks"
        timeout.callbacks.append(lambda _: self._arrive(batch, arrivals))

    def _arrive(self, batch: _Batch, arrivals: Iterable[tuple[int, Demand]]) -> None:
        for position, demand in arrivals:
            # A link without a limit shares nothing.
            loads = tuple(use for use in demand.loads if self.capacities[use[0]] < inf)
            if demand.size_bytes <= 0 or (not loads and demand.limit_bytes_per_s == inf):
                self._end(batch, position)
                continue
            stream = _Stream(self._started, demand, batch, position, demand.size_bytes)
            stream.since_s = self.env.now
            self._started += 1
            if not loads:
                self._set_rate(stream, demand.limit_bytes_per_s)
                self._wake_at_next_finish()
                continue
            stream.loads = loads
            for link, load in loads:
                self._users.setdefault(link, {})[stream.number] = stream, load
                self._touched[link] = True
            self._settle_later()

    def _end(self, batch: _Batch, position: int) -> None:
        batch.ends_s[position] = self.env.now
        batch.missing -= 1
        if not batch.missing:
            batch.event.succeed(batch.ends_s)

    def _settle_later(self) -> None:
        if self._settling:
            return
        self._settling = True
        event = self.env.event()
        assert event.callbacks is not None, "a new event takes callbacks"
        event.callbacks.append(self._settle)
        event._ok, event._value = True, None  # simpy's own way to trigger with a priority
        self.env.schedule(event, priority=_LAST)  # type: ignore[arg-type]

    def _settle(self, _: Event) -> None:
        """Give new rates to all streams that a change of users can reach."""
        self._settling = False
        for streams, available in self._components(self._unchanged_below()):
            self.recomputed += len(streams)
            rates = fair_rates(
                [stream.loads for stream in streams],
                available,
                [stream.demand.limit_bytes_per_s for stream in streams],
            )
            for stream, rate in zip(streams, rates, strict=True):
                if rate != stream.rate:
                    self._set_rate(stream, rate)
        self._touched.clear()
        self._least_ended = inf
        self._wake_at_next_finish()

    def _unchanged_below(self) -> float:
        """Give the level up to which filling goes on as it did: slower streams keep their rates.

        A stream that ended made no link full below its own rate; with new streams no link is full
        before each user has an equal share.
        """
        level = self._least_ended
        for link, has_arrival in self._touched.items():
            if has_arrival:
                total = sum(load for _, load in self._users[link].values())
                level = min(level, self.capacities[link] / total) if total else level
        return level * (1 - _SAME_RATE)

    def _components(self, level: float) -> Iterable[tuple[list[_Stream], dict[int, float]]]:
        """Give the streams that share links, directly or through others, with a touched link.

        And what each of these links has left beside the streams slower than `level`.
        """
        self._settled += 1
        available: dict[int, float] = {}
        for first in self._touched:
            if first in available:
                continue
            links, found = [first], list[_Stream]()
            available[first] = self.capacities[first]
            while links:
                link = links.pop()
                for stream, load in self._users[link].values():
                    if 0.0 < stream.rate < level:
                        available[link] -= stream.rate * load
                    elif stream.settled != self._settled:
                        stream.settled = self._settled
                        found.append(stream)
                        for other, _ in stream.loads:
                            if other not in available:
                                available[other] = self.capacities[other]
                                links.append(other)
            if found:
                # In order of arrival, so that rounding doesn't depend on where the search began.
                found.sort(key=attrgetter("number"))
                yield found, available

    def _set_rate(self, stream: _Stream, rate: float) -> None:
        now_s = self.env.now
        stream.left_bytes -= stream.rate * (now_s - stream.since_s)
        stream.since_s = now_s
        stream.rate = rate
        left_bytes = stream.left_bytes
        stream.finish_s = now_s + left_bytes / rate if left_bytes > 0 else now_s
        heappush(self._finishes, (stream.finish_s, stream.number, stream))

    def _wake_at_next_finish(self) -> None:
        while self._finishes and self._finishes[0][0] != self._finishes[0][2].finish_s:
            heappop(self._finishes)
        if not self._finishes:
            return
        finish_s = self._finishes[0][0]
        if finish_s < self._waking_s:
            self._waking_s = finish_s
            timeout = self.env.timeout(max(finish_s - self.env.now, 0.0))
            assert timeout.callbacks is not None, "a new timeout takes callbacks"
            timeout.callbacks.append(lambda _: self._wake(finish_s))

    def _wake(self, due_s: float) -> None:
        """End the streams whose time has come, unless an earlier wake-up took this one's place."""
        if due_s != self._waking_s:
            return
        self._waking_s = inf
        horizon_s = self.env.now * (1 + _SAME_INSTANT)
        while self._finishes and self._finishes[0][0] <= max(horizon_s, due_s):
            finish_s, number, stream = heappop(self._finishes)
            if finish_s != stream.finish_s:
                continue
            stream.finish_s = inf
            for link, _ in stream.loads:
                del self._users[link][number]
                self._touched.setdefault(link, False)
            self._least_ended = min(self._least_ended, stream.rate)
            self._end(stream.batch, stream.position)
        if self._touched:
            self._settle_later()
        else:
            self._wake_at_next_finish()
