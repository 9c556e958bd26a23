"""How long an iteration of a plan will take, roughly: to choose between plans that look alike.

The plan is played with its transfers (`playout`); then the parameter groups synchronize, one after
the other on each device, NIC and the fabric, once for all micro-batches, and each device steps its
optimizer. Two figures: a runtime may synchronize behind the backward, or beside it, in buckets.
It leaves out what the simulator is for: how traffic at one time shares links.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spindle_sim.estimate import Estimator
from spindle_sim.estimate.memory import GRADIENT_BYTES
from spindle_sim.plan import Backward, MetaOp, ParameterGroup, Plan
from spindle_sim.plan.lanes import lanes
from spindle_sim.planner.affinity import Affinity
from spindle_sim.planner.playout import Course, Span

__all__ = ["Forecast", "forecast"]

Floats = npt.NDArray[np.float64]

# A bucket of gradients: what the simulator takes where it isn't told otherwise.
BUCKET_BYTES = 100e6
# Synchronizing slows computing, which delays synchronizing: worked out so many times.
PASSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds of an iteration whose gradients synchronize behind the backward, and beside it."""

    apart_s: float
    beside_s: float

    @property
    def longest_s(self) -> float:
        """Give the longer of the two."""
        return max(self.apart_s, self.beside_s)

    def regret(self, least: "Forecast") -> float:
        """Give how many times longer than `least` it takes in the way that suits it less."""
        return max(self.apart_s / least.apart_s, self.beside_s / least.beside_s)


def forecast(
    plan: Plan,
    estimator: Estimator,
    overlap_sync: bool | None = None,  # noqa: FBT001
) -> Forecast:
    """Give the seconds until the last device has synchronized and stepped.

    Where it is known whether gradients will synchronize beside the backward, both figures are
    that one.
    """
    course = Course.of(plan)
    stepped = _step_s(plan, estimator)
    groups = [group for group in plan.parameter_groups if len(group.devices) > 1]
    reduces = _Reduces.of(groups, estimator, Affinity(plan.cluster))

    def seconds(free: Sequence[float], synced: Sequence[float]) -> float:
        return max(map(sum, zip(map(max, free, synced), stepped, strict=True)))

    played = course.play()
    apart_s = 0.0
    if overlap_sync is not True:
        whole = [
            _Bucket(max(played.free[d] for d in one.devices), one.devices, one.shard, one.bytes)
            for one in groups
        ]
        apart_s = seconds(played.free, reduces.spans(whole)[1])
    if overlap_sync is False:
        return Forecast(apart_s=apart_s, beside_s=apart_s)
    for _ in range(PASSES):
        spans, _ = reduces.spans(_buckets(plan, groups, played.backwards))
        played = course.play(spans)
    _, synced = reduces.spans(_buckets(plan, groups, played.backwards))
    beside_s = seconds(played.free, synced)
    return Forecast(apart_s=beside_s if overlap_sync else apart_s, beside_s=beside_s)


class _Bucket(NamedTuple):
    """Gradients that one all-reduce takes, and when they are complete. In the order they go."""

    ready_s: float
    devices: tuple[int, ...]
    shard: int
    size_bytes: float


class _Member(NamedTuple):
    """The gradient of one operator."""

    ready_s: float
    size_bytes: float


class _Used(NamedTuple):
    """What a group's all-reduces use: of devices that always go together one, and NICs."""

    lanes: tuple[int, ...]
    nics: tuple[int, ...]  # none within an island


@dataclass(slots=True, kw_only=True)
class _Reduces:
    """All-reduces of a plan: what each takes alone, and how they follow each other on the links."""

    estimator: Estimator
    affinity: Affinity
    _known: dict[tuple[tuple[int, ...], float], tuple[float, float]] = field(default_factory=dict)
    _used: dict[tuple[int, ...], _Used] = field(default_factory=dict)

    @classmethod
    def of(
        cls, groups: Sequence[ParameterGroup], estimator: Estimator, affinity: Affinity
    ) -> "_Reduces":
        """Prepare the all-reduces of these groups."""
        found = cls(estimator=estimator, affinity=affinity)
        together = lanes([group.devices for group in groups])
        for group, own in zip(groups, together, strict=True):
            found._used[group.devices] = _Used(tuple(own), found._nics_of(group.devices))
        return found

    def spans(self, buckets: Iterable[_Bucket]) -> tuple[list[Span], list[float]]:
        """Give when each bucket synchronizes: on a device, NIC and the fabric one after another.

        And when each device has synchronized.
        """
        ends_s: dict[tuple[int, ...], float] = {}
        synced = [0.0] * self.affinity.cluster.num_devices
        nics = dict[int, float]()
        fabric_s = 0.0
        found: list[Span] = []
        for ready_s, devices, _, size_bytes in sorted(buckets):
            takes_s, filled_s = self._alone_s(devices, size_bytes)
            used = self._used[devices]
            start_s = max(ready_s, fabric_s if filled_s else 0.0)
            for lane in used.lanes:
                start_s = max(start_s, synced[lane])
            for nic in used.nics:
                start_s = max(start_s, nics.get(nic, 0.0))
            end_s = start_s + takes_s
            found.append(Span(start_s, end_s, devices))
            for lane in used.lanes:
                synced[lane] = end_s
            nics.update(dict.fromkeys(used.nics, end_s))
            ends_s[devices] = end_s
            if filled_s:
                fabric_s = start_s + filled_s
        for devices, end_s in ends_s.items():
            for device in devices:
                synced[device] = max(synced[device], end_s)
        return found, synced

    def _alone_s(self, devices: tuple[int, ...], size_bytes: float) -> tuple[float, float]:
        """Give what an all-reduce takes, and for how much of that it fills the fabric."""
        key = devices, size_bytes
        if key not in self._known:
            cluster = self.affinity.cluster
            takes_s = self.estimator.all_reduce_s(size_bytes, devices)
            filled_s = 0.0
            nodes = len({cluster.node_of(d) for d in devices})
            # A fabric that isn't oversubscribed is never what limits.
            if nodes > 1 and cluster.oversubscription > 1.0:
                filled_s = 2 * size_bytes * nodes / self.affinity.fabric_bytes_per_s
            self._known[key] = takes_s, min(takes_s, filled_s)
        return self._known[key]

    def _nics_of(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Give the NICs that a group uses: none within an island."""
        places = np.array(devices)
        if len(np.unique(self.affinity.island[places])) == 1:
            return ()
        return tuple(np.unique(self.affinity.nic[places]).tolist())


def _step_s(plan: Plan, estimator: Estimator) -> list[float]:
    """Give the optimizer's seconds on each device: with ZeRO it steps its part of each group."""
    parameters = [0.0] * plan.cluster.num_devices
    for group in plan.parameter_groups:
        share = group.bytes / GRADIENT_BYTES / (len(group.devices) if plan.zero1 else 1)
        for device in group.devices:
            parameters[device] += share
    known = {count: estimator.optimizer_step_s(count) for count in set(parameters) if count}
    return [known.get(count, 0.0) for count in parameters]


def _buckets(
    plan: Plan, groups: Sequence[ParameterGroup], backwards: Sequence[tuple[float, float]]
) -> list[_Bucket]:
    """Cut the groups into buckets, in the order in which gradients become complete."""
    metaops = {metaop.parameter_set: metaop for metaop in plan.metaops}
    complete = _complete(plan, backwards)
    buckets: list[_Bucket] = []
    for group in groups:
        members: list[_Member] = []
        weights = [
            _weight(metaops[p.parameter_set], group.num_shards) for p in group.parameter_sets
        ]
        parts = list(zip(group.parameter_sets, weights, strict=True))
        total = sum(weight * part.num_ops for part, weight in parts)
        for part, weight in parts:
            size_bytes = group.bytes * weight / total if total else 0.0
            ready = complete[part.parameter_set][part.first_op : part.first_op + part.num_ops]
            members += [_Member(ready_s, size_bytes) for ready_s in ready.tolist()]
        members.sort()
        buckets += _cut(group, members)
    return buckets


def _cut(group: ParameterGroup, members: Sequence[_Member]) -> list[_Bucket]:
    """Fill buckets in order; what is complete at one instant stays together."""
    buckets: list[_Bucket] = []
    last_s, size = 0.0, 0.0
    for ready_s, together in groupby(members, key=attrgetter("ready_s")):
        more = sum(member.size_bytes for member in together)
        if size and size + more > BUCKET_BYTES:
            buckets.append(_Bucket(last_s, group.devices, group.shard, size))
            size = 0.0
        last_s, size = ready_s, size + more
    if size:
        buckets.append(_Bucket(last_s, group.devices, group.shard, size))
    return buckets


def _weight(metaop: MetaOp, num_shards: int) -> float:
    """Give what a device holds of one operator's parameters."""
    return metaop.parameters - metaop.sharded_parameters * (1 - 1 / num_shards)


def _complete(plan: Plan, backwards: Sequence[tuple[float, float]]) -> dict[str, Floats]:
    """Give when each operator's gradient is complete, by parameter set.

    Operators of a slice go backward from the last one, each for an equal part of it.
    """
    metaops = plan.metaop_by_id()
    found: dict[str, Floats] = {}
    for item, (start_s, end_s) in zip(plan.slices, backwards, strict=True):
        metaop = metaops[item.metaop]
        ready = found.setdefault(metaop.parameter_set, np.zeros(metaop.num_ops))
        if metaop.backward not in (Backward.FULL, Backward.WEIGHT_ONLY):
            continue
        own = end_s - np.arange(item.num_ops) * ((end_s - start_s) / item.num_ops)
        part = slice(item.first_op, item.first_op + item.num_ops)
        ready[part] = np.maximum(ready[part], own)
    return found
