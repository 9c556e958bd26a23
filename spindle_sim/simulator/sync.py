"""Which parameter group synchronizes when: one global order, so that none deadlocks."""

from dataclasses import dataclass

from spindle_sim.plan import Backward, ParameterGroup, Plan
from spindle_sim.plan.schedule import Operation, Schedule, operation_order

__all__ = ["SyncStep", "sync_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStep:
    """A parameter group and the operations that must have ended before it synchronizes."""

    group: ParameterGroup
    after: tuple[Operation, ...]


def sync_steps(plan: Plan, free: Schedule, *, overlap: bool) -> tuple[SyncStep, ...]:
    """Give the groups of two devices and more in the order in which every device takes them.

    By when their gradients are ready if transfers are free (`free`); ties by devices and shard.
    With `overlap` a group waits for the backwards that touch its parameters, otherwise for all of
    its devices' operations.
    """
    last: dict[int, Operation] = {}
    for operation in operation_order(plan):
        for device in plan.slices[operation.slice_index].devices:
            last[device] = operation
    touching = _touching(plan) if overlap else {}
    steps: list[tuple[float, SyncStep]] = []
    for group in plan.parameter_groups:
        if len(group.devices) == 1:
            continue
        if overlap:
            after = _touched(group, touching)
        else:
            after = [last[device] for device in group.devices if device in last]
        ends = (_end_s(free, operation) for operation in after)
        steps.append(
            (max(ends, default=0.0), SyncStep(group=group, after=tuple(dict.fromkeys(after))))
        )
    steps.sort(key=lambda step: (step[0], step[1].group.devices, step[1].group.shard))
    return tuple(step for _, step in steps)


def _end_s(free: Schedule, operation: Operation) -> float:
    times = free.slices[operation.slice_index]
    return times.backward_end_s if operation.backward else times.forward_end_s


def _touching(plan: Plan) -> dict[tuple[str, int], list[int]]:
    """Give the slices, by index, whose backward adds to the gradient of each operator."""
    metaops = plan.metaop_by_id()
    touching: dict[tuple[str, int], list[int]] = {}
    for index, item in enumerate(plan.slices):
        metaop = metaops[item.metaop]
        if metaop.backward in (Backward.FULL, Backward.WEIGHT_ONLY):
            for op in range(item.first_op, item.first_op + item.num_ops):
                touching.setdefault((metaop.parameter_set, op), []).append(index)
    return touching


def _touched(group: ParameterGroup, touching: dict[tuple[str, int], list[int]]) -> list[Operation]:
    indexes = {
        index
        for part in group.parameter_sets
        for op in range(part.first_op, part.first_op + part.num_ops)
        for index in touching.get((part.parameter_set, op), ())
    }
    return [Operation(slice_index=index, backward=True) for index in sorted(indexes)]
