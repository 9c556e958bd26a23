"""What synchronizes when: parameter groups, or their buckets, in one order: none can deadlock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from spindle_sim.plan import Backward, ParameterGroup, Plan
from spindle_sim.plan.schedule import Operation, Schedule

__all__ = ["DEFAULT_BUCKET_BYTES", "Milestone", "SyncStep", "sync_steps"]

# All-reduces of 200 MB reach 94 % and more of the bandwidth of one of 1 GB on 8 to 256 modelled
# A800; the 25 MB of torch's DDP only 77 %, since they wait for latencies (docs/simulator.md).
DEFAULT_BUCKET_BYTES = 100e6


class Milestone(NamedTuple):
    """The last `num_ops` operators of a slice having ended, in its forward or backward."""

    operation: Operation
    num_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStep:
    """An all-reduce of `size_bytes` on each device, and what must have ended before it."""

    devices: tuple[int, ...]
    size_bytes: float
    after: tuple[Milestone, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradient:
    """The gradient of one operator: when it is complete, and what that waits for."""

    ready_s: float = 0.0
    after: tuple[Milestone, ...] = ()


class _Member(NamedTuple):
    """A gradient of one group; `size_bytes` is of one device. In the order of synchronization."""

    ready_s: float
    parameter_set: str
    from_end: int  # the last operator's gradient is complete first
    size_bytes: float
    after: tuple[Milestone, ...]


def sync_steps(
    plan: Plan, free: Schedule, *, overlap: bool, bucket_bytes: float = DEFAULT_BUCKET_BYTES
) -> tuple[SyncStep, ...]:
    """Give all all-reduces of groups of two devices and more, in the order of every device.

    By when their gradients are ready if transfers are free (`free`), those of all micro-batches;
    ties by devices and shard.
    Without `overlap` a group is one step, after all of its devices' operations.
    Otherwise it is cut into buckets, in the order in which its gradients become complete.
    """
    shared = [group for group in plan.parameter_groups if len(group.devices) > 1]
    steps: list[tuple[float, SyncStep, int]] = []
    if overlap:
        gradients, held = _gradients(plan, free), _parameters(plan)
        for group in shared:
            steps += _buckets(group, _members(group, gradients, held), bucket_bytes)
    else:
        steps += _whole(plan, free, shared)
    # Stable: buckets of one group that are ready at once stay in their order.
    steps.sort(key=lambda step: (step[0], step[1].devices, step[2]))
    return tuple(step for _, step, _ in steps)


def _whole(
    plan: Plan, free: Schedule, groups: Iterable[ParameterGroup]
) -> list[tuple[float, SyncStep, int]]:
    """Give each group as one step, with when it is ready and its shard."""
    last: dict[int, Operation] = {}
    for operation in free.operations:
        for device in plan.slices[operation.slice_index].devices:
            last[device] = operation
    steps: list[tuple[float, SyncStep, int]] = []
    for group in groups:
        ends = dict.fromkeys(last[device] for device in group.devices if device in last)
        after = tuple(
            Milestone(operation, plan.slices[operation.slice_index].num_ops) for operation in ends
        )
        ready_s = max((_reached_s(plan, free, mark) for mark in after), default=0.0)
        step = SyncStep(devices=group.devices, size_bytes=group.bytes, after=after)
        steps.append((ready_s, step, group.shard))
    return steps


def _gradients(plan: Plan, free: Schedule) -> dict[tuple[str, int], _Gradient]:
    """Give the gradient of each operator: every slice that runs its backward adds to it."""
    metaops = plan.metaop_by_id()
    last = {op.slice_index: op for op in free.operations if op.backward}  # of its micro-batches
    found: dict[tuple[str, int], list[Milestone]] = {}
    for index, item in enumerate(plan.slices):
        metaop = metaops[item.metaop]
        if metaop.backward in (Backward.FULL, Backward.WEIGHT_ONLY):
            backward = last[index]
            for done in range(1, item.num_ops + 1):
                key = metaop.parameter_set, item.first_op + item.num_ops - done
                found.setdefault(key, []).append(Milestone(backward, done))
    return {
        key: _Gradient(
            ready_s=max(_reached_s(plan, free, mark) for mark in marks), after=tuple(marks)
        )
        for key, marks in found.items()
    }


def _parameters(plan: Plan) -> dict[str, tuple[int, int]]:
    """Give the parameters of an operator of each set, and those that tensor parallelism divides."""
    return {
        metaop.parameter_set: (metaop.parameters, metaop.sharded_parameters)
        for metaop in plan.metaops
    }


def _members(
    group: ParameterGroup,
    gradients: dict[tuple[str, int], _Gradient],
    parameters: dict[str, tuple[int, int]],
) -> list[_Member]:
    """Give the gradients of a group in order; their bytes add up to the group's."""
    held = {
        part.parameter_set: whole - sharded + sharded / group.num_shards
        for part in group.parameter_sets
        for whole, sharded in [parameters[part.parameter_set]]
    }
    total = sum(held[part.parameter_set] * part.num_ops for part in group.parameter_sets)
    members: list[_Member] = []
    for part in group.parameter_sets:
        size_bytes = group.bytes * held[part.parameter_set] / total if total else 0.0
        for op in range(part.first_op, part.first_op + part.num_ops):
            gradient = gradients.get((part.parameter_set, op), _Gradient())
            members.append(
                _Member(gradient.ready_s, part.parameter_set, -op, size_bytes, gradient.after)
            )
    return sorted(members)


def _buckets(
    group: ParameterGroup, members: Iterable[_Member], bucket_bytes: float
) -> Iterable[tuple[float, SyncStep, int]]:
    """Cut a group: a bucket takes what is complete next, until more would be too much.

    What is complete at one instant stays together: to cut it would add latency and gain nothing.
    """
    bucket: list[_Member] = []
    for _, together in groupby(members, key=attrgetter("ready_s")):
        more = list(together)
        if bucket and _size_bytes(bucket) + _size_bytes(more) > bucket_bytes:
            yield _bucket(group, bucket)
            bucket = []
        bucket += more
    if bucket:
        yield _bucket(group, bucket)


def _bucket(group: ParameterGroup, members: Sequence[_Member]) -> tuple[float, SyncStep, int]:
    furthest: dict[Operation, int] = {}
    for member in members:
        for operation, num_ops in member.after:
            furthest[operation] = max(furthest.get(operation, 0), num_ops)
    step = SyncStep(
        devices=group.devices,
        size_bytes=_size_bytes(members),
        after=tuple(Milestone(*pair) for pair in sorted(furthest.items())),
    )
    return members[-1].ready_s, step, group.shard


def _size_bytes(members: Iterable[_Member]) -> float:
    return sum(member.size_bytes for member in members)


def _reached_s(plan: Plan, free: Schedule, mark: Milestone) -> float:
    """Give when a milestone is reached in the schedule: operators take equal parts of a slice.

    It is one of the last operation of a slice: of its last micro-batch.
    """
    operation, num_ops = mark
    times, item = free.slices[operation.slice_index], plan.slices[operation.slice_index]
    if not operation.backward:
        return times.last_forward_end_s
    if num_ops == item.num_ops:
        return times.backward_end_s
    duration_s = times.backward_end_s - times.backward_start_s
    return times.backward_start_s + duration_s * num_ops / item.num_ops
