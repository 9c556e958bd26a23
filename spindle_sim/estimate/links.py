"""Times of messages and collectives from a profile's link points: by size, ranks and reach.

Between two sizes the time is linear in the bytes. A message smaller than the smallest takes as
long as that, one larger than the largest goes on at its bandwidth. Groups between two measured
numbers of ranks lie between their times; what lies outside is left to the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spindle_sim.cluster import Cluster
from spindle_sim.estimate.profile import LinkPoint, Profile
from spindle_sim.workload.operators import BYTES_PER_ELEMENT

__all__ = ["LinkTable", "MeasuredLink"]

_Series = tuple[tuple[float, float], ...]  # (bytes, seconds), ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """How long something takes alone; of that `latency_s` for the smallest size measured."""

    time_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The link points of a profile on one cluster.

    Sizes that are asked for are those of plans, whose elements are `BYTES_PER_ELEMENT` wide; those
    of the profile are of elements of `element_bytes`.
    """

    cluster: Cluster
    element_bytes: float
    series: dict[tuple[str, str, int], _Series]  # operation, reach, ranks

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster) -> "LinkTable":
        """Index a profile's links."""
        found: dict[tuple[str, str, int], list[LinkPoint]] = {}
        for point in profile.links:
            found.setdefault((point.operation, point.reach, point.ranks), []).append(point)
        return cls(
            cluster=cluster,
            element_bytes=profile.element_bytes,
            series={
                key: tuple(sorted((point.size_bytes, point.time_s) for point in points))
                for key, points in found.items()
            },
        )

    def find(
        self, operation: str, size_bytes: float, devices: Sequence[int]
    ) -> MeasuredLink | None:
        """Give what was measured of an operation between devices; None where nothing was."""
        if len(devices) == 1 or size_bytes <= 0:
            return None
        islands = {self.cluster.island_of(device) for device in devices}
        reach = "island" if len(islands) == 1 else "network"
        measured_bytes = size_bytes * self.element_bytes / BYTES_PER_ELEMENT
        around = self._around(operation, reach, len(devices))
        if not around:
            return None
        times = [(ranks, _at(series, measured_bytes)) for ranks, series in around]
        latencies = [(ranks, series[0][1]) for ranks, series in around]
        time_s = _between(times, len(devices))
        return MeasuredLink(time_s=time_s, latency_s=min(time_s, _between(latencies, len(devices))))

    def _around(self, operation: str, reach: str, ranks: int) -> list[tuple[int, _Series]]:
        """Give the series of that many ranks, or those of the next fewer and more."""
        known = sorted(
            (count, series)
            for (name, where, count), series in self.series.items()
            if (name, where) == (operation, reach)
        )
        exact = [item for item in known if item[0] == ranks]
        if exact:
            return exact
        return next(([a, b] for a, b in pairwise(known) if a[0] < ranks < b[0]), [])


def _between(values: Sequence[tuple[int, float]], ranks: int) -> float:
    if len(values) == 1:
        return values[0][1]
    (r0, t0), (r1, t1) = values
    return t0 + (ranks - r0) / (r1 - r0) * (t1 - t0)


def _at(series: _Series, size_bytes: float) -> float:
    if size_bytes <= series[0][0]:
        return series[0][1]
    for (x0, t0), (x1, t1) in pairwise(series):
        if x0 <= size_bytes <= x1:
            return t0 + (size_bytes - x0) / (x1 - x0) * (t1 - t0)
    largest_bytes, largest_s = series[-1]
    return largest_s * size_bytes / largest_bytes
