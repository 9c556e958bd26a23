"""ZeRO stages 2 and 3: gradients and parameters that lie in parts, and when they are put together.

Stage 2 reduce-scatters the gradients of every micro-batch, in buckets, while its backward goes on,
and gathers the parameters after the step. Stage 3 gathers the parameters of each operator before
its forward and before its backward, the next operator's while one computes, and reduce-scatters its
gradients behind its backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.estimate import Collective, Estimator
from spindle_sim.estimate.memory import GRADIENT_BYTES, PARAMETER_BYTES, shard_parameters
from spindle_sim.plan import Backward, MetaOp, ParameterGroup, Plan, Slice
from spindle_sim.simulator.collectives import collective_demand
from spindle_sim.simulator.links import Links
from spindle_sim.simulator.network import Demand
from spindle_sim.simulator.symmetry import coalesced

__all__ = ["Bucket", "ShardedSlice", "Vector", "group_vector", "sharded_slices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One collective on each parameter group of some operators; `size_bytes` on each of them."""

    devices: tuple[int, ...]
    size_bytes: float
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduce-scattered when the last `num_ops` operators have gone backward."""

    num_ops: int
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSlice:
    """What a slice gathers before each of its operators, in order, and what it scatters behind."""

    gathers: tuple[Vector | None, ...] = ()  # empty unless parameters are sharded
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes the collectives of operators; equal ones once."""

    estimator: Estimator
    links: Links
    vectors: dict[tuple[Collective, float, tuple[int, ...]], Vector]
    groups: Sequence[ParameterGroup]

    def vector(
        self, collective: Collective, size_bytes: float, numbers: tuple[int, ...]
    ) -> Vector | None:
        """Give a collective of so many bytes on each of these groups; None for no group."""
        if not numbers or size_bytes <= 0:
            return None
        key = collective, size_bytes, numbers
        if key not in self.vectors:
            groups = [self.groups[number].devices for number in numbers]
            demands = [
                collective_demand(
                    self.estimator, self.links, collective, size_bytes, devices=devices
                )
                for devices in groups
            ]
            self.vectors[key] = Vector(
                devices=tuple(dict.fromkeys(device for group in groups for device in group)),
                size_bytes=size_bytes,
                demands=coalesced(demands)[0],
            )
        return self.vectors[key]


def sharded_slices(
    plan: Plan, estimator: Estimator, links: Links, *, bucket_bytes: float
) -> tuple[ShardedSlice, ...]:
    """Give the collectives of each slice, in the plan's order; of stages 0 and 1 there are none."""
    if not plan.shard_gradients:
        return tuple(ShardedSlice() for _ in plan.slices)
    builder = _Builder(estimator, links, {}, plan.parameter_groups)
    shared = _shared(plan)
    metaops = plan.metaop_by_id()
    found: list[ShardedSlice] = []
    for item in plan.slices:
        metaop = metaops[item.metaop]
        numbers = [
            _of_slice(plan, item, shared.get((metaop.parameter_set, op), ()))
            for op in range(item.first_op, item.first_op + item.num_ops)
        ]
        parameters = shard_parameters(metaop, item.tp)
        gathers = tuple(
            builder.vector(Collective.ALL_GATHER, PARAMETER_BYTES * parameters, own)
            for own in (numbers if plan.shard_parameters else ())
        )
        limit = 0.0 if plan.shard_parameters else bucket_bytes
        buckets = _buckets(builder, metaop, GRADIENT_BYTES * parameters, numbers, limit=limit)
        found.append(ShardedSlice(gathers=gathers, buckets=buckets))
    return tuple(found)


def group_vector(estimator: Estimator, links: Links, group: ParameterGroup) -> Vector:
    """Give the gathering of all parameters of a group."""
    size_bytes = group.bytes * PARAMETER_BYTES / GRADIENT_BYTES
    demand = collective_demand(
        estimator, links, Collective.ALL_GATHER, size_bytes, devices=group.devices
    )
    return Vector(devices=group.devices, size_bytes=size_bytes, demands=(demand,))


def _shared(plan: Plan) -> dict[tuple[str, int], tuple[int, ...]]:
    """Give the groups of several devices that hold each operator, by number."""
    found: dict[tuple[str, int], list[int]] = {}
    for number, group in enumerate(plan.parameter_groups):
        if len(group.devices) > 1:
            for part in group.parameter_sets:
                for op in range(part.first_op, part.first_op + part.num_ops):
                    found.setdefault((part.parameter_set, op), []).append(number)
    return {key: tuple(numbers) for key, numbers in found.items()}


def _of_slice(plan: Plan, item: Slice, numbers: Sequence[int]) -> tuple[int, ...]:
    """Give those groups that have a device of the slice."""
    own = set(item.devices)
    return tuple(n for n in numbers if not own.isdisjoint(plan.parameter_groups[n].devices))


def _buckets(
    builder: _Builder,
    metaop: MetaOp,
    operator_bytes: float,
    numbers: Sequence[tuple[int, ...]],
    *,
    limit: float,
) -> tuple[Bucket, ...]:
    """Fill buckets as the backward goes, from the last operator on; each has one at least."""
    if metaop.backward not in (Backward.FULL, Backward.WEIGHT_ONLY):
        return ()
    runs: list[tuple[int, tuple[int, ...]]] = []  # operators of a bucket, their groups
    for own in reversed(numbers):
        if runs and runs[-1][1] == own and (runs[-1][0] + 1) * operator_bytes <= limit:
            runs[-1] = runs[-1][0] + 1, own
        else:
            runs.append((1, own))
    buckets: list[Bucket] = []
    done = 0
    for count, own in runs:
        done += count
        vector = builder.vector(Collective.REDUCE_SCATTER, count * operator_bytes, own)
        if vector is not None:
            buckets.append(Bucket(num_ops=done, vector=vector))
    return tuple(buckets)
