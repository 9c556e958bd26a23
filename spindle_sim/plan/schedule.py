"""WHEN every slice runs if transfers are free: the schedule of a plan, by a plain recurrence.

The execution order is that of `plan/model.py`; this file is the one place where it is worked out
(pipelined rounds: `plan/pipeline.py`).
It knows no network and no simulator: the simulator without a network must give the same numbers.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spindle_sim.errors import PlanError
from spindle_sim.plan.lanes import lanes
from spindle_sim.plan.model import Backward, Flow, Order, Plan, Round, Slice
from spindle_sim.plan.pipeline import pipeline_mistakes, pipeline_of, pipeline_order

__all__ = [
    "Operation",
    "Schedule",
    "ScheduledSlice",
    "execution_order",
    "handovers",
    "has_backward",
    "operation_order",
    "schedule",
]


class Operation(NamedTuple):
    """The forward or the backward of `plan.slices[slice_index]` for one micro-batch."""

    slice_index: int
    backward: bool
    micro_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSlice:
    """When one slice runs: its first micro-batch's forward, and the last backward that it runs.

    Without a backward, both of its backward times are its last forward's end.
    """

    slice: str
    forward_start_s: float
    forward_end_s: float
    backward_start_s: float
    backward_end_s: float
    last_forward_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times of all slices, in the plan's order, and of all operations, with free transfers."""

    slices: tuple[ScheduledSlice, ...]
    operations: tuple[Operation, ...]  # as `operation_order`
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """End of the last forward or backward."""
        return max(self.ends_s, default=0.0)

    def by_id(self) -> dict[str, ScheduledSlice]:
        """Give the times by slice id."""
        return {item.slice: item for item in self.slices}


def execution_order(plan: Plan) -> dict[int, tuple[Slice, ...]]:
    """Give the slices of each device in the order in which it first runs their forwards.

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
    """Give all forwards and backwards in one order: each device runs its own in this order.

    Every operation stands behind those whose output it takes.

    Raises:
        PlanError: a round is to be pipelined, but its slices are no pipeline.
    """
    slices = plan.slices
    backward = has_backward(plan)
    indexes = sorted(range(len(slices)), key=lambda index: _order_key(slices[index]))
    rounds: dict[int, list[int]] = {}
    for index in indexes:
        rounds.setdefault(slices[index].round, []).append(index)
    how = {item.round: item for item in plan.rounds}
    order: list[Operation] = []
    for number, members in rounds.items():
        one = how.get(number, Round(round=number))
        if one.order is Order.ONE_FORWARD_ONE_BACKWARD:
            order += _pipelined(plan, members, one, backward)
        elif one.order is Order.ACCUMULATE:
            for micro_batch in range(one.micro_batches):
                order += _flushed(members, (micro_batch,), backward)
        else:
            order += _flushed(members, range(one.micro_batches), backward)
    return tuple(order)


def handovers(
    plan: Plan, known: Container[Operation]
) -> Iterator[tuple[Flow, Operation, Operation]]:
    """Give for each flow and micro-batch which `known` operation gives what to which, both ways."""
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        for number in range(plan.micro_batches(plan.slices[source].round)):
            for backward in (False, True) if flow.gradient else (False,):
                ends = (target, source) if backward else (source, target)
                given, taken = (Operation(index, backward, number) for index in ends)
                if given in known and taken in known:
                    yield flow, given, taken


def schedule(plan: Plan) -> Schedule:
    """Give the start and end of every forward and backward if every transfer is free.

    Linear in operations times the kinds of devices of each, and in what flows.

    Raises:
        PlanError: order and flows form a cycle, so that the plan could never finish, or a round is
            to be pipelined and no pipeline.
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
    forward: list[tuple[float, float]] = [(0.0, 0.0)] * count
    backward: list[tuple[float, float] | None] = [None] * count
    last = [0.0] * count  # where the forwards of each slice end
    for op, start_s, end_s in zip(order, starts, ends, strict=True):
        if op.backward:
            backward[op.slice_index] = start_s, end_s
            continue
        last[op.slice_index] = end_s
        if not op.micro_batch:
            forward[op.slice_index] = start_s, end_s
    return Schedule(
        slices=tuple(
            ScheduledSlice(
                slice=item.id,
                forward_start_s=ahead[0],
                forward_end_s=ahead[1],
                backward_start_s=back[0] if back else last_s,
                backward_end_s=back[1] if back else last_s,
                last_forward_end_s=last_s,
            )
            for item, ahead, back, last_s in zip(plan.slices, forward, backward, last, strict=True)
        ),
        operations=order,
        starts_s=tuple(starts),
        ends_s=tuple(ends),
    )


def _order_key(item: Slice) -> tuple[int, int, float, str]:
    return item.round, item.stage, item.start_s, item.id


def _flushed(
    members: Sequence[int], micro_batches: Iterable[int], backward: Sequence[bool]
) -> Iterable[Operation]:
    """Give all forwards, micro-batch by micro-batch, then all backwards in reverse."""
    forwards = [
        Operation(slice_index=index, backward=False, micro_batch=number)
        for number in micro_batches
        for index in members
    ]
    yield from forwards
    for index, _, number in reversed(forwards):
        if backward[index]:
            yield Operation(slice_index=index, backward=True, micro_batch=number)


def _pipelined(
    plan: Plan, members: Sequence[int], one: Round, backward: Sequence[bool]
) -> Iterable[Operation]:
    """Give a round by 1F1B: of each stage its slices by `start_s`, backwards in reverse."""
    slices = [plan.slices[index] for index in members]
    mistakes = pipeline_mistakes(slices, one.micro_batches)
    if mistakes:
        raise PlanError(f"round {one.round} can't be pipelined: {mistakes[0][1]}")
    by_stage: dict[int, list[int]] = {}
    for index in members:
        by_stage.setdefault(plan.slices[index].stage, []).append(index)
    for block in pipeline_order(pipeline_of(slices, one.micro_batches)):
        own = by_stage[block.stage]
        for index in reversed(own) if block.backward else own:
            if backward[index] or not block.backward:
                yield Operation(
                    slice_index=index, backward=block.backward, micro_batch=block.micro_batch
                )


def _predecessors(plan: Plan, order: Sequence[Operation]) -> list[set[int]]:
    """Give, for each operation, the positions of those that it waits for."""
    own = _lanes(plan)
    predecessors: list[set[int]] = []
    last: dict[int, int] = {}
    for position, op in enumerate(order):
        devices = own[op.slice_index]
        predecessors.append({last[device] for device in devices if device in last})
        last.update(dict.fromkeys(devices, position))
    # As in `handovers`, with plain tuples: planners schedule often.
    position_of: dict[tuple[int, bool, int], int] = {op: at for at, op in enumerate(order)}
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    counts = {item.round: item.micro_batches for item in plan.rounds}
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        for number in range(counts.get(plan.slices[source].round, 1)):
            given, taken = (source, False, number), (target, False, number)
            if given in position_of and taken in position_of:
                predecessors[position_of[taken]].add(position_of[given])
            given, taken = (target, True, number), (source, True, number)
            if flow.gradient and given in position_of and taken in position_of:
                predecessors[position_of[taken]].add(position_of[given])
    return predecessors


def _lanes(plan: Plan) -> Sequence[tuple[int, ...]]:
    """Give the devices of each slice, of those that always go together only one."""
    devices = [item.devices for item in plan.slices]
    # One operation a slice is sooner done for each device than the devices are compared.
    return lanes(devices) if plan.rounds else devices


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
    names = [_name(plan, order[position]) for position in cycle]
    return PlanError(
        "the plan can never finish: each of these waits for the one before it, by the order on a"
        f" shared device or by a flow: {' -> '.join([*names, names[0]])};"
        " give the source of each flow an earlier round, stage or start_s than its target"
    )


def _name(plan: Plan, operation: Operation) -> str:
    item = plan.slices[operation.slice_index]
    way = "backward" if operation.backward else "forward"
    several = plan.micro_batches(item.round) > 1
    return f"{item.id} ({way}{f' of micro-batch {operation.micro_batch}' if several else ''})"
