"""How long an iteration of a plan will take, roughly: to choose between plans that look alike.

As `plan.schedule`, but every flow takes what it takes alone on idle links (a micro-batch its part),
and then the parameter groups synchronize, one after the other on each device, NIC and the fabric,
once for all micro-batches, and each device steps its optimizer. Two figures, since a runtime may
synchronize behind the backward or beside it. It leaves out what the simulator is for: links shared
by flows at one time.
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
from spindle_sim.plan.schedule import operation_order
from spindle_sim.planner.affinity import Affinity, Crossing, Group

__all__ = ["Forecast", "forecast"]

Floats = npt.NDArray[np.float64]

# A bucket of gradients, and how much longer computing beside its synchronization takes: what the
# simulator takes where it isn't told otherwise.
BUCKET_BYTES = 100e6
SLOWDOWN = 1.126


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds of an iteration whose gradients synchronize behind the backward, and beside it."""

    apart_s: float
    beside_s: float

    def under(self, overlap_sync: bool | None) -> "Forecast":  # noqa: FBT001
        """Give what counts where it is known whether gradients synchronize beside the backward."""
        if overlap_sync is None:
            return self
        seconds = self.beside_s if overlap_sync else self.apart_s
        return Forecast(apart_s=seconds, beside_s=seconds)

    @property
    def longest_s(self) -> float:
        """Give the longer of the two."""
        return max(self.apart_s, self.beside_s)

    def regret(self, least: "Forecast") -> float:
        """Give how many times longer than `least` it takes in the way that suits it less."""
        return max(self.apart_s / least.apart_s, self.beside_s / least.beside_s)


def forecast(plan: Plan, estimator: Estimator) -> Forecast:
    """Give the seconds until the last device has synchronized and stepped."""
    free, backwards = _compute(plan)
    stepped = _step_s(plan, estimator)
    groups = [group for group in plan.parameter_groups if len(group.devices) > 1]
    reduces = _Reduces(estimator=estimator, affinity=Affinity(plan.cluster))
    whole = [
        _Bucket(max(free[d] for d in group.devices), group.devices, group.shard, group.bytes)
        for group in groups
    ]
    apart = reduces.after(whole, list(free), slowdown=1.0)
    beside = reduces.after(_buckets(plan, groups, backwards), list(free), slowdown=SLOWDOWN)
    return Forecast(
        apart_s=max(map(sum, zip(apart, stepped, strict=True))),
        beside_s=max(map(sum, zip(beside, stepped, strict=True))),
    )


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


@dataclass(slots=True, kw_only=True)
class _Reduces:
    """All-reduces of a plan: what each takes alone, and how they follow each other on the links."""

    estimator: Estimator
    affinity: Affinity
    _known: dict[tuple[tuple[int, ...], float], tuple[float, float]] = field(default_factory=dict)
    _nics: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def after(
        self, buckets: Iterable[_Bucket], computed: Sequence[float], *, slowdown: float
    ) -> list[float]:
        """Give when each device is through; it has computed by `computed` where nothing slows it.

        Computing takes `slowdown` times as long on a device while it synchronizes.
        """
        more = slowdown - 1.0
        synced = [0.0] * len(computed)
        beside = [0.0] * len(computed)  # seconds of synchronizing while a device computes
        nics: dict[int, float] = {}
        fabric_s = 0.0
        for ready_s, devices, _, size_bytes in sorted(buckets):
            takes_s, far_s = self._alone_s(devices, size_bytes)
            used = self._nics_of(devices) if far_s else ()
            start_s = max(
                ready_s + more * max(beside[d] for d in devices),
                *(synced[d] for d in devices),
                *(nics.get(nic, 0.0) for nic in used),
                fabric_s if far_s else 0.0,
            )
            end_s = start_s + takes_s
            for d in devices:
                synced[d] = end_s
                beside[d] += max(0.0, min(end_s, computed[d]) - start_s)
            for nic in used:
                nics[nic] = end_s
            if far_s:
                fabric_s = start_s + far_s
        return [
            max(done_s, free_s + more * slowed_s)
            for done_s, free_s, slowed_s in zip(synced, computed, beside, strict=True)
        ]

    def _alone_s(self, devices: tuple[int, ...], size_bytes: float) -> tuple[float, float]:
        """Give what an all-reduce takes, and how much of that it fills the fabric.

        The latter is positive for one that leaves an island.
        """
        key = devices, size_bytes
        if key not in self._known:
            cluster = self.affinity.cluster
            takes_s = self.estimator.all_reduce_s(size_bytes, devices)
            far_s = 0.0
            if len({cluster.island_of(d) for d in devices}) > 1:
                nodes = len({cluster.node_of(d) for d in devices})
                whole = cluster.num_nodes * cluster.nics_per_node / cluster.oversubscription
                sent_bytes = 2 * size_bytes * nodes if nodes > 1 else 0.0
                far_s = min(takes_s, sent_bytes / (whole * self.affinity.network_bytes_per_s))
                far_s = max(far_s, 1e-12)
            self._known[key] = takes_s, far_s
        return self._known[key]

    def _nics_of(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        if devices not in self._nics:
            nics = np.unique(self.affinity.nic[np.array(devices)])
            self._nics[devices] = tuple(nics.tolist())
        return self._nics[devices]


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


@dataclass(slots=True)
class _Links:
    """NICs, each way, and the fabric: from when until when each is last known to be full."""

    full: dict[tuple[int, bool], tuple[float, float]] = field(default_factory=dict)

    def after(self, start_s: float, crossing: Crossing, *, reverse: bool) -> float:
        """Give when a transfer arrives that begins at `start_s`: links serve one after another."""
        loads = [((nic, into != reverse), s) for (nic, into), s in crossing.nics.items()]
        if crossing.fabric_s:
            loads.append(((-1, False), crossing.fabric_s))
        begin_s = start_s
        for link, _ in loads:
            since_s, until_s = self.full.get(link, (0.0, 0.0))
            # One that is full only later is taken to be free: messages aren't seen in their order.
            if since_s <= start_s < until_s:
                begin_s = max(begin_s, until_s)
        for link, seconds in loads:
            since_s, until_s = self.full.get(link, (0.0, 0.0))
            if begin_s >= until_s:
                self.full[link] = begin_s, begin_s + seconds
            elif begin_s >= since_s:
                self.full[link] = since_s, max(until_s, begin_s + seconds)
        return begin_s + crossing.takes_s


def _compute(plan: Plan) -> tuple[list[float], list[tuple[float, float]]]:
    """Give when each device has done its last backward, and each slice's last backward's times."""
    links = _Links()
    gives = _crossings(plan)
    free = [0.0] * plan.cluster.num_devices
    # Flushed or accumulated: a slice's last micro-batch so far is the one that others wait for.
    arrived = [[0.0, 0.0] for _ in plan.slices]
    backwards = [(0.0, 0.0)] * len(plan.slices)
    for operation in operation_order(plan):
        index, back = operation.slice_index, operation.backward
        item = plan.slices[index]
        start_s = max(arrived[index][back], max(free[d] for d in item.devices))
        end_s = start_s + (item.backward_s if back else item.forward_s)
        if back:
            backwards[index] = start_s, end_s
        for device in item.devices:
            free[device] = end_s
        for other, crossing in gives[back][index]:
            there_s = links.after(end_s, crossing, reverse=back)
            arrived[other][back] = max(arrived[other][back], there_s)
    return free, backwards


def _crossings(plan: Plan) -> tuple[list[list[tuple[int, Crossing]]], ...]:
    """Give what each slice hands to which others, forward and backward."""
    affinity = Affinity(plan.cluster)
    groups = [Group(item.devices, item.tp) for item in plan.slices]
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    forward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    backward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        size_bytes = flow.bytes / plan.micro_batches(plan.slices[source].round)
        crossing = affinity.crossing(groups[source], groups[target], size_bytes)
        forward[source].append((target, crossing))
        if flow.gradient:
            backward[target].append((source, crossing))
    return forward, backward
