"""All that a plan will ever put on the network, made ready before time passes.

Only what repeats is: a plan whose slices run once makes each boundary when it comes to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spindle_sim.estimate import Estimator
from spindle_sim.plan import Flow, MetaOp, Plan, Slice
from spindle_sim.plan.cuts import token_shards
from spindle_sim.simulator.collectives import all_reduce_demand
from spindle_sim.simulator.crews import repeats
from spindle_sim.simulator.links import Links
from spindle_sim.simulator.network import Demand
from spindle_sim.simulator.sharding import ShardedSlice, Vector, group_vector, sharded_slices
from spindle_sim.simulator.symmetry import distinct_links, on_links
from spindle_sim.simulator.sync import SyncStep
from spindle_sim.simulator.transfers import Boundary, Crossing, crossing
from spindle_sim.timeline import Phase

__all__ = ["Boundaries", "Traffic", "prepare"]

_Way = tuple[str, str, Phase]  # source and target of a flow, and the direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Boundaries that repeat, all-reduces, and what sharded slices and groups gather and scatter.

    `reduces` go with the synchronization steps, `sharded` with the slices.
    """

    crossings: dict[_Way, Crossing]
    reduces: tuple[Demand, ...]
    sharded: tuple[ShardedSlice, ...]
    after_step: tuple[Vector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Makes the boundaries of a plan's flows."""

    plan: Plan
    slices: dict[str, Slice]
    metaops: dict[str, MetaOp]
    shards: Mapping[tuple[str, str], int]

    @classmethod
    def of_plan(cls, plan: Plan) -> "Boundaries":
        """Look up what a plan's flows join."""
        return cls(
            plan=plan,
            slices=plan.slice_by_id(),
            metaops=plan.metaop_by_id(),
            shards=token_shards(plan),
        )

    def of(self, flow: Flow, phase: Phase) -> Boundary:
        """Give one direction of a flow, for one micro-batch."""
        source, target = self.slices[flow.source_slice], self.slices[flow.target_slice]
        if phase is Phase.BACKWARD:
            source, target = target, source
        return Boundary(
            source=source,
            target=target,
            size_bytes=flow.bytes / self.plan.micro_batches(source.round),
            phase=phase,
            task=self.metaops[source.metaop].task,
            token_shards=self.shards.get((flow.source_slice, flow.target_slice), 1),
        )


def prepare(
    plan: Plan,
    links: Links,
    estimator: Estimator,
    steps: Sequence[SyncStep],
    *,
    bucket_bytes: float,
) -> Traffic:
    """Make the traffic of a plan ready."""
    reduces = tuple(
        all_reduce_demand(estimator, links, step.size_bytes, step.devices) for step in steps
    )
    sharded = sharded_slices(plan, estimator, links, bucket_bytes=bucket_bytes)
    if not repeats(plan):
        return Traffic(crossings={}, reduces=reduces, sharded=sharded, after_step=())
    boundaries = Boundaries.of_plan(plan)
    crossings = {
        (flow.source_slice, flow.target_slice, phase): crossing(
            boundaries.of(flow, phase), links, estimator, repeats=True
        )
        for flow in plan.flows
        for phase in ((Phase.FORWARD, Phase.BACKWARD) if flow.gradient else (Phase.FORWARD,))
    }
    gathers = [group for group in plan.parameter_groups if len(group.devices) > 1]
    only_gradients = plan.shard_gradients and not plan.shard_parameters
    traffic = Traffic(
        crossings=crossings,
        reduces=reduces,
        sharded=sharded,
        after_step=tuple(
            group_vector(estimator, links, group)
            for group in sorted(gathers, key=lambda group: (group.devices, group.shard))
            if only_gradients
        ),
    )
    kept = distinct_links(_demands(traffic), links.capacities)
    return _mapped(traffic, lambda demand: on_links(demand, kept))


def _demands(traffic: Traffic) -> Iterable[Demand]:
    for ready in traffic.crossings.values():
        yield from ready.demands
    yield from traffic.reduces
    for vector in traffic.after_step:
        yield from vector.demands
    for vector in _vectors(traffic.sharded):
        yield from vector.demands


def _vectors(sharded: Iterable[ShardedSlice]) -> Iterable[Vector]:
    """Give each collective of slices once."""
    found: dict[int, Vector] = {}
    for item in sharded:
        for vector in (*item.gathers, *(bucket.vector for bucket in item.buckets)):
            if vector is not None:
                found[id(vector)] = vector
    return found.values()


def _mapped(traffic: Traffic, change: Callable[[Demand], Demand]) -> Traffic:
    """Give the traffic with every demand changed."""

    def vector(old: Vector) -> Vector:
        return replace(old, demands=tuple(map(change, old.demands)))

    changed = {id(old): vector(old) for old in _vectors(traffic.sharded)}
    return Traffic(
        crossings={
            way: replace(ready, demands=tuple(map(change, ready.demands)))
            for way, ready in traffic.crossings.items()
        },
        reduces=tuple(map(change, traffic.reduces)),
        sharded=tuple(
            ShardedSlice(
                gathers=tuple(old and changed[id(old)] for old in item.gathers),
                buckets=tuple(
                    replace(bucket, vector=changed[id(bucket.vector)]) for bucket in item.buckets
                ),
            )
            for item in traffic.sharded
        ),
        after_step=tuple(map(vector, traffic.after_step)),
    )
