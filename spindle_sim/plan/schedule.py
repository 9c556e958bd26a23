"""WHEN every slice runs if transfers are free: the schedule of a plan, by a plain recurrence.

The execution order is that of `plan/model.py`; this file is the one place where it is worked out.
It knows no network and no simulator: the simulator without a network must give the same numbers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spindle_sim.errors import PlanError
from spindle_sim.plan.model import Backward, Flow, Plan, Slice

__all__ = [
    "Operation",
    "Schedule",
    "ScheduledSlice",
    "execution_order",
    "has_backward",
    "operation_order",
    "schedule",
]


class Operation(NamedTuple):
    """The forward or the backward of `plan.slices[slice_index]`."""

    slice_index: int
    backward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSlice:
    """When one slice runs; without a backward, both of its backward times are its forward end."""

    slice: str
    forward_start_s: float
    forward_end_s: float
    backward_start_s: float
    backward_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times of all slices, in the plan's order, with free transfers."""

    slices: tuple[ScheduledSlice, ...]

    @property
    def makespan_s(self) -> float:
        """End of the last forward or backward."""
        return max((item.backward_end_s for item in self.slices), default=0.0)

    def by_id(self) -> dict[str, ScheduledSlice]:
        """Give the times by slice id."""
        return {item.slice: item for item in self.slices}


def execution_order(plan: Plan) -> dict[int, tuple[Slice, ...]]:
    """Give the slices of each device in the order in which it runs their forwards.

    Devices without a slice map to an empty tuple.
    """
    orders: dict[int, list[Slice]] = {device: [] for device in range(plan.cluster.num_devices)}
    for item in sorted(plan.slices, key=_order_key):
        for device in item.devices:
            orders[device].append(item)
    return {device: tuple(order) for device, order in orders.items()}


def has_backward(plan: Plan) -> tuple[bool, ...]:
    """Tell of each slice, in the plan's order, whether it has a backward to run."""
    metaops = plan.metaop_by_id()
    return tuple(metaops[item.metaop].backward is not Backward.NONE for item in plan.slices)


def operation_order(plan: Plan) -> tuple[Operation, ...]:
    """Give all forwards and backwards in one order: each device runs its own in this order."""
    slices = plan.slices
    backward = has_backward(plan)
    indexes = sorted(range(len(slices)), key=lambda index: _order_key(slices[index]))
    rounds: dict[int, list[int]] = {}
    for index in indexes:
        rounds.setdefault(slices[index].round, []).append(index)
    order: list[Operation] = []
    for members in rounds.values():
        order += [Operation(slice_index=index, backward=False) for index in members]
        order += [
            Operation(slice_index=index, backward=True)
            for index in reversed(members)
            if backward[index]
        ]
    return tuple(order)


def schedule(plan: Plan) -> Schedule:
    """Give the start and end of every forward and backward if every transfer is free.

    Linear in slices times devices, and in flows.

    Raises:
        PlanError: order and flows form a cycle, so that the plan could never finish.
    """
    order = operation_order(plan)
    predecessors = _predecessors(plan, order)
    durations = [
        plan.slices[op.slice_index].backward_s
        if op.backward
        else plan.slices[op.slice_index].forward_s
        for op in order
    ]
    starts, ends = _earliest(durations, predecessors, lambda ids: _deadlock(plan, order, ids))
    count = len(plan.slices)
    forward = [(0.0, 0.0)] * count
    backward: list[tuple[float, float] | None] = [None] * count
    for op, start_s, end_s in zip(order, starts, ends, strict=True):
        if op.backward:
            backward[op.slice_index] = start_s, end_s
        else:
            forward[op.slice_index] = start_s, end_s
    return Schedule(
        slices=tuple(
            ScheduledSlice(
                slice=item.id,
                forward_start_s=ahead[0],
                forward_end_s=ahead[1],
                backward_start_s=back[0] if back else ahead[1],
                backward_end_s=back[1] if back else ahead[1],
            )
            for item, ahead, back in zip(plan.slices, forward, backward, strict=True)
        )
    )


def _order_key(item: Slice) -> tuple[int, int, float, str]:
    return item.round, item.stage, item.start_s, item.id


def _predecessors(plan: Plan, order: Sequence[Operation]) -> list[set[int]]:
    """Give, for each operation, the positions of those that it waits for."""
    predecessors: list[set[int]] = []
    last: dict[int, int] = {}
    for position, op in enumerate(order):
        devices = plan.slices[op.slice_index].devices
        predecessors.append({last[device] for device in devices if device in last})
        last.update(dict.fromkeys(devices, position))
    position_of: dict[tuple[int, bool], int] = {op: at for at, op in enumerate(order)}
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    for source, target, gradient in _ends(plan.flows, index_of):
        predecessors[position_of[target, False]].add(position_of[source, False])
        if gradient and (source, True) in position_of and (target, True) in position_of:
            predecessors[position_of[source, True]].add(position_of[target, True])
    return predecessors


def _ends(flows: Iterable[Flow], index_of: dict[str, int]) -> Iterable[tuple[int, int, bool]]:
    for flow in flows:
        yield index_of[flow.source_slice], index_of[flow.target_slice], flow.gradient


def _earliest(
    durations: Sequence[float],
    predecessors: Sequence[set[int]],
    deadlock: Callable[[list[int]], PlanError],
) -> tuple[list[float], list[float]]:
    """Give earliest starts and ends in topological order (Kahn)."""
    successors: list[list[int]] = [[] for _ in durations]
    for position, before in enumerate(predecessors):
        for other in before:
            successors[other].append(position)
    missing = [len(before) for before in predecessors]
    starts = [0.0] * len(durations)
    ends = [0.0] * len(durations)
    ready = deque(position for position, count in enumerate(missing) if not count)
    done = 0
    while ready:
        position = ready.popleft()
        done += 1
        end_s = ends[position] = starts[position] + durations[position]
        for after in successors[position]:
            starts[after] = max(starts[after], end_s)
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    if done < len(durations):
        raise deadlock(_cycle(predecessors, missing))
    return starts, ends


def _cycle(predecessors: Sequence[set[int]], missing: Sequence[int]) -> list[int]:
    """Give one cycle among the operations that never became ready, in execution direction."""
    position = next(p for p, count in enumerate(missing) if count)
    path: list[int] = []
    seen: dict[int, int] = {}
    while position not in seen:
        seen[position] = len(path)
        path.append(position)
        position = min(p for p in predecessors[position] if missing[p])
    return path[seen[position] :][::-1]


def _deadlock(plan: Plan, order: Sequence[Operation], cycle: Sequence[int]) -> PlanError:
    names = [
        f"{plan.slices[order[p].slice_index].id} ({'backward' if order[p].backward else 'forward'})"
        for p in cycle
    ]
    return PlanError(
        "the plan can never finish: each of these waits for the one before it, by the order on a"
        f" shared device or by a flow: {' -> '.join([*names, names[0]])};"
        " give the source of each flow an earlier round, stage or start_s than its target"
    )
