"""What would help most? Each change is simulated: the critical path says only what to try.

A path says what an iteration gains if something on it takes less time, as long as no other chain
becomes the longest. Whether one does, the simulation of the changed plan says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from spindle_sim.cluster import Cluster
from spindle_sim.metrics import CriticalPath, PathKind
from spindle_sim.plan import Plan, Slice
from spindle_sim.simulator import simulated_s
from spindle_sim.timeline import Kind, Phase, Timeline

__all__ = ["ChangeKind", "Sensitivity", "sensitivities", "timed_as"]

_NUM_METAOPS = 5
_LEAST_SHARE = 0.005  # of the path: less isn't worth a simulation


class ChangeKind(StrEnum):
    """What is changed."""

    METAOP = "metaop"  # forward and backward of all slices of one MetaOp take less time
    COMPUTE = "compute"  # those of all, where there are several: a faster GPU
    LINKS = "links"  # every link: bandwidths and latencies
    NETWORK_CARDS = "network_cards"  # the bandwidth of the nodes' network cards alone
    MEMORY = "memory"  # the GPUs' memory bandwidth, for optimizer steps and copies
    OVERLAP_SYNC = "overlap_sync"  # gradients synchronize beside the backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One change and the iteration that it gives, simulated; `base_s` is that without it.

    `path_s` is how long the critical path is about what is changed, `expected_s` the iteration if
    the path stays the critical one; None where the path can't tell.
    """

    kind: ChangeKind
    base_s: float
    simulated_s: float
    metaop: str = ""
    path_s: float = 0.0
    expected_s: float | None = None

    @property
    def saved_s(self) -> float:
        """By how much the iteration is shorter; below 0 where it is longer."""
        return self.base_s - self.simulated_s


@dataclass(frozen=True, slots=True)
class _Change:
    kind: ChangeKind
    plan: Plan
    path_s: float
    metaop: str = ""
    is_told: bool = True  # whether the path tells what comes of it


def sensitivities(
    plan: Plan,
    path: CriticalPath,
    *,
    executed: bool = False,
    faster: float = 0.1,
    num_metaops: int = _NUM_METAOPS,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[Sensitivity, ...]:
    """Simulate the plan with each of the path's largest parts taking `faster` less time.

    Those are the MetaOps that it computes longest, all computing, links and optimizer steps, each
    if it is half a percent of the path at least; and synchronization beside the backward. The
    largest saving comes first. `plan.overlap_sync` says how gradients synchronize. Each change
    takes a simulation, of which `advance` is told.

    Of an executed iteration (`executed`; `plan` is then `timed_as` it) only computing is changed:
    links and steps took other times there than the cluster's model says.
    """
    advance("simulating the plan as it is")
    base_s = simulated_s(plan)
    found = []
    changes = [_computing_changes(plan, path, faster, num_metaops)]
    if not executed:
        changes.append(_other_changes(plan, path, faster))
    for change in chain.from_iterable(changes):
        advance(f"simulating a change: {change.metaop or change.kind.value}")
        found.append(
            Sensitivity(
                kind=change.kind,
                base_s=base_s,
                simulated_s=simulated_s(change.plan),
                metaop=change.metaop,
                path_s=change.path_s,
                expected_s=base_s - faster * change.path_s if change.is_told else None,
            )
        )
    return tuple(sorted(found, key=lambda one: one.simulated_s))  # stable: else as on the path


def timed_as(plan: Plan, timeline: Timeline) -> Plan:
    """Give the plan with its slices' durations as they ran; of those that didn't, as planned.

    A forward or backward takes as long as its slowest device, the mean over micro-batches; waiting
    for parameters isn't computing.
    """
    slowest: dict[tuple[str, Phase], dict[int, float]] = {}
    for span in timeline.spans:
        if span.kind is Kind.COMPUTE:
            own = slowest.setdefault((span.slice, span.phase), {})
            worked_s = span.duration_s - span.wait_s
            own[span.micro_batch] = max(own.get(span.micro_batch, 0.0), worked_s)
    means = {key: sum(own.values()) / len(own) for key, own in slowest.items()}
    return replace(
        plan,
        slices=tuple(
            replace(
                item,
                forward_s=means.get((item.id, Phase.FORWARD), item.forward_s),
                backward_s=means.get((item.id, Phase.BACKWARD), item.backward_s),
            )
            for item in plan.slices
        ),
    )


def _computing_changes(
    plan: Plan, path: CriticalPath, faster: float, num_metaops: int
) -> Iterator[_Change]:
    least_s = _LEAST_SHARE * path.iteration_s
    computed = [(one.compute_s, one.name) for one in path.by_metaop() if one.name]
    for path_s, name in sorted(computed, key=lambda pair: (-pair[0], pair[1]))[:num_metaops]:
        if path_s >= least_s:
            yield _Change(ChangeKind.METAOP, _computing(plan, name, 1 - faster), path_s, name)
    whole_s = sum(path_s for path_s, _ in computed)
    if len(computed) > 1 and whole_s >= least_s:
        yield _Change(ChangeKind.COMPUTE, _computing(plan, None, 1 - faster), whole_s)


def _other_changes(plan: Plan, path: CriticalPath, faster: float) -> Iterator[_Change]:
    least_s = _LEAST_SHARE * path.iteration_s
    lengths = {PathKind(share.name): share.seconds for share in path.by_kind()}
    moved_s = lengths[PathKind.TRANSFER] + lengths[PathKind.SYNCHRONIZATION]
    cluster = plan.cluster
    if moved_s >= least_s:
        quick = _linked(cluster, 1 - faster)
        yield _Change(ChangeKind.LINKS, replace(plan, cluster=quick), moved_s)
        if cluster.num_nodes > 1:
            cards = replace(
                cluster,
                nic_bandwidth_bytes_per_s=cluster.nic_bandwidth_bytes_per_s / (1 - faster),
            )
            changed = replace(plan, cluster=cards)
            yield _Change(ChangeKind.NETWORK_CARDS, changed, moved_s, is_told=False)
    if lengths[PathKind.STEP] >= least_s:
        bandwidth = cluster.gpu.memory_bandwidth_bytes_per_s / (1 - faster)
        gpu = replace(cluster.gpu, memory_bandwidth_bytes_per_s=bandwidth)
        changed = replace(plan, cluster=replace(cluster, gpu=gpu))
        yield _Change(ChangeKind.MEMORY, changed, lengths[PathKind.STEP])
    synced_s = lengths[PathKind.SYNCHRONIZATION]
    if synced_s >= least_s and not plan.overlap_sync and not plan.shard_gradients:
        overlapping = replace(plan, overlap_sync=True)
        yield _Change(ChangeKind.OVERLAP_SYNC, overlapping, synced_s, is_told=False)


def _computing(plan: Plan, metaop: str | None, factor: float) -> Plan:
    """Give the plan in which a MetaOp (None: all) takes `factor` of its time; the order stays."""

    def scaled(item: Slice) -> Slice:
        if metaop is not None and item.metaop != metaop:
            return item
        return replace(item, forward_s=item.forward_s * factor, backward_s=item.backward_s * factor)

    return replace(plan, slices=tuple(map(scaled, plan.slices)))


def _linked(cluster: Cluster, factor: float) -> Cluster:
    """Give the cluster whose links take `factor` of their time."""
    gpu = replace(
        cluster.gpu,
        link_bandwidth_bytes_per_s=cluster.gpu.link_bandwidth_bytes_per_s / factor,
        collective_bandwidth_bytes_per_s=cluster.gpu.collective_bandwidth_bytes_per_s / factor,
    )
    return replace(
        cluster,
        gpu=gpu,
        nic_bandwidth_bytes_per_s=cluster.nic_bandwidth_bytes_per_s / factor,
        link_latency_s=cluster.link_latency_s * factor,
        network_latency_s=cluster.network_latency_s * factor,
    )
