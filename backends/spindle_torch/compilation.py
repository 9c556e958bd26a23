"""A plan compiled into one program per rank (localization, section 3.6); pure, no torch.

There is one global order of everything: operations in the order of `plan/schedule.py`, behind each
the messages with its output, then the parameter groups, then the norm of all gradients where they
are clipped, then the optimizer, then with ZeRO-1 the groups again. With overlap the groups are cut
into buckets, each launched behind the operation that completes its gradients, and awaited at the
end. From ZeRO-2 on gradients are scattered behind every operation that adds to them, and in ZeRO-3
parameters gathered ahead of each operator. Each rank runs the part of it that concerns it. As every
rank posts its messages in that one order, messages between two ranks match without tags, which NCCL
doesn't have.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from spindle_sim.plan import MetaOp, Plan, Slice
from spindle_sim.plan.schedule import Operation, handovers, operation_order
from spindle_torch.buckets import Bucket, Milestone, Overlap, parameter_buckets
from spindle_torch.gathering import Gatherings, Placed
from spindle_torch.intervals import pieces
from spindle_torch.program import (
    Await,
    Batch,
    Clip,
    Compute,
    Copy,
    Gather,
    Instruction,
    Launch,
    Message,
    Program,
    Step,
    Synchronize,
)
from spindle_torch.sharding import ShardedSlice, sharded_slices

__all__ = ["collective_groups", "compile_plan"]


def compile_plan(
    plan: Plan, *, clip: bool = False, overlap: Overlap | None = None
) -> tuple[Program, ...]:
    """Give the program of every device of the plan's cluster, in order of device.

    With `clip` gradients are clipped by the norm over all devices; with `overlap` they are
    synchronized beside the backward.
    """
    listed: list[list[Instruction]] = [[] for _ in range(plan.cluster.num_devices)]
    metaops, outputs = plan.metaop_by_id(), _outputs(plan)
    buckets = parameter_buckets(plan, overlap)
    order, sharded = operation_order(plan), sharded_slices(plan, buckets)
    gatherings = Gatherings(plan=plan, order=order, slices=sharded, buckets=buckets)
    pending: list[list[Await]] = [[] for _ in listed]
    if plan.shard_parameters:
        _place(listed, gatherings.start())
    for position, operation in enumerate(order):
        item = plan.slices[operation.slice_index]
        compute = Compute(
            slice=item.id,
            backward=operation.backward,
            collectives=collective_groups(item, metaops[item.metaop]),
            micro_batch=operation.micro_batch,
        )
        for device in item.devices:
            listed[device].append(compute)
        if plan.shard_parameters:
            beside = list(gatherings.within(position))
        else:
            beside = list(_scattered(buckets, sharded[item.id])) if operation.backward else []
        _place(listed, beside, within=item.devices)
        # What is complete while the backward still runs may leave at once, the rest after the
        # messages, for which others wait.
        whole = Milestone(position, item.num_ops)
        early = (Milestone(position, 0), whole)
        _launch(plan, listed, buckets, early, within=item.devices)
        _transmit(listed, plan, operation, outputs.get(operation, []))
        _launch(plan, listed, buckets, (whole, Milestone(position + 1, 0)))
        _await_earlier(listed, pending, beside)
    if plan.shard_parameters:
        _place(listed, gatherings.end())
    for device, instructions in enumerate(listed):
        instructions += pending[device]
        instructions += _end(plan, buckets, device, clip=clip, launched=overlap is not None)
    return tuple(
        Program(rank=rank, instructions=tuple(instructions))
        for rank, instructions in enumerate(listed)
    )


def collective_groups(item: Slice, metaop: MetaOp) -> tuple[tuple[int, ...], ...]:
    """Give the groups in which the slice's devices meet while they compute."""
    groups: list[tuple[int, ...]] = []
    if item.tp > 1:
        groups += [
            item.devices[start : start + item.tp] for start in range(0, len(item.devices), item.tp)
        ]
    if metaop.batch_coupled and item.dp > 1:
        groups += [item.devices[shard :: item.tp] for shard in range(item.tp)]
    return tuple(groups)


def _scattered(buckets: Sequence[Bucket], item: ShardedSlice) -> Iterator[Placed]:
    """Give what leaves behind a backward, from the last operator to the first."""
    for group in chain(*reversed(item.leaving)):
        devices = buckets[group].group.devices
        yield Placed(devices, Launch(group=group, devices=devices, scatter=True, within=True))


def _place(
    listed: list[list[Instruction]], beside: Iterable[Placed], within: tuple[int, ...] = ()
) -> None:
    """Have all devices of these come, those that don't compute meanwhile by themselves."""
    for devices, instruction in beside:
        for device in devices:
            listed[device].append(replace(instruction, within=device in within))


def _await_earlier(
    listed: list[list[Instruction]], pending: list[list[Await]], beside: Sequence[Placed]
) -> None:
    """Await what a device had launched before these launches, which go on beside what follows."""
    launches = [item for _, item in beside if isinstance(item, Launch)]
    for device in sorted({device for item in launches for device in item.devices}):
        listed[device] += pending[device]
        pending[device] = [Await(group=item.group) for item in launches if device in item.devices]


def _launch(
    plan: Plan,
    listed: list[list[Instruction]],
    buckets: Sequence[Bucket],
    between: tuple[Milestone, Milestone],
    within: tuple[int, ...] = (),
) -> None:
    """Launch the buckets that are complete at the first milestone or later, before the second.

    They may begin within the operation on those devices that run it.
    """
    for index, bucket in enumerate(buckets):
        devices = bucket.group.devices
        if between[0] <= bucket.complete < between[1] and len(devices) > 1:
            for device in devices:
                launch = Launch(
                    group=index, devices=devices, scatter=plan.zero1, within=device in within
                )
                listed[device].append(launch)


def _end(
    plan: Plan, buckets: Sequence[Bucket], device: int, *, clip: bool, launched: bool
) -> Iterator[Instruction]:
    """Give what follows the last backward on a device."""
    shared = [
        (index, bucket.group.devices, bucket.complete)
        for index, bucket in enumerate(buckets)
        if device in bucket.group.devices and len(bucket.group.devices) > 1
    ]
    if not plan.shard_gradients:  # else they are scattered behind each backward
        yield from _sums(plan, shared, launched=launched)
    if clip:
        yield Clip(devices=tuple(range(plan.cluster.num_devices)))
    yield Step()
    if plan.zero1 and not plan.shard_parameters:
        for index, devices, _ in shared:
            yield Gather(group=index, devices=devices)


def _sums(
    plan: Plan, shared: Sequence[tuple[int, tuple[int, ...], Milestone]], *, launched: bool
) -> Iterator[Instruction]:
    """Give how gradients are summed behind all backwards: (bucket, devices, when complete)."""
    if not launched:
        for index, devices, _ in shared:
            yield Synchronize(group=index, devices=devices, scatter=plan.zero1)
        return
    last = len(operation_order(plan))
    for index, devices, complete in shared:
        if complete.position == last:  # no operation adds to it: none has launched it
            yield Launch(group=index, devices=devices, scatter=plan.zero1)
    for index, _, _ in shared:
        yield Await(group=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boundary:
    """One flow in one direction."""

    flow: int
    source: Slice
    target: Slice
    batch: int


def _outputs(plan: Plan) -> dict[Operation, list[_Boundary]]:
    """Give what leaves each operation: activations to consumers, gradients to producers."""
    metaops = plan.metaop_by_id()
    number_of = {id(flow): number for number, flow in enumerate(plan.flows)}
    found: dict[Operation, list[_Boundary]] = {}
    for flow, given, taken in handovers(plan, set(operation_order(plan))):
        item = plan.slices[given.slice_index]
        boundary = _Boundary(
            flow=number_of[id(flow)],
            source=item,
            target=plan.slices[taken.slice_index],
            batch=metaops[item.metaop].batch // plan.micro_batches(item.round),
        )
        found.setdefault(given, []).append(boundary)
    return found


def _transmit(
    listed: list[list[Instruction]],
    plan: Plan,
    operation: Operation,
    boundaries: list[_Boundary],
) -> None:
    sends: dict[int, list[Message]] = {}
    receives: dict[int, list[Message]] = {}
    for message in _messages(boundaries, operation):
        if message.piece.is_local:
            listed[message.piece.source].append(Copy(message=message))
        else:
            sends.setdefault(message.piece.source, []).append(message)
            receives.setdefault(message.piece.target, []).append(message)
    for rank in sorted({*sends, *receives}):
        listed[rank].append(
            Batch(
                slice=plan.slices[operation.slice_index].id,
                backward=operation.backward,
                sends=tuple(sends.get(rank, ())),
                receives=tuple(receives.get(rank, ())),
                micro_batch=operation.micro_batch,
            )
        )


def _messages(boundaries: list[_Boundary], operation: Operation) -> Iterator[Message]:
    for boundary in boundaries:
        for piece in pieces(boundary.source, boundary.target, boundary.batch):
            yield Message(
                flow=boundary.flow,
                backward=operation.backward,
                piece=piece,
                micro_batch=operation.micro_batch,
            )
