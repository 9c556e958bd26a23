"""The processes of one iteration: forward and backward of each slice, synchronization, optimizer.

Each is a short story of what it waits for and how long it lasts; nothing waits for anything else.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

import simpy
from simpy.events import Event

from spindle_sim.plan import Flow, MetaOp, Plan, Slice
from spindle_sim.plan.schedule import Operation
from spindle_sim.simulator.contention import Contention
from spindle_sim.simulator.crews import Crews
from spindle_sim.simulator.holdings import Holding
from spindle_sim.simulator.memory import MemoryTrack, kept_bytes, recomputed_bytes
from spindle_sim.simulator.network import Demand, Network
from spindle_sim.simulator.record import Record
from spindle_sim.simulator.sync import Milestone
from spindle_sim.simulator.traffic import Boundaries, Traffic
from spindle_sim.simulator.transfers import Transfers, crossing
from spindle_sim.timeline import Phase

__all__ = [
    "Gate",
    "Story",
    "World",
    "run_collective",
    "run_flow",
    "run_operation",
    "run_optimizer",
]

Story = Generator[Event, object, None]


@dataclass(frozen=True, slots=True)
class Gate:
    """Before one operator of an operation: its parameters are gathered; it has begun."""

    gathered: Event | None  # None: nothing of it has to be
    begun: Event


@dataclass(slots=True)
class World:
    """What the processes of one run share.

    `done` has an event for each operation, `marks` for each part of one that something waits for:
    by how many operators have ended. `gates` has those that stop before each operator. `memory` is
    of the devices that stand for others, `first` and `last` their first and last operations.
    """

    env: simpy.Environment
    plan: Plan
    metaops: dict[str, MetaOp]
    slices: dict[str, Slice]
    network: Network | None  # None: transfers and collectives are free
    traffic: Traffic
    transfers: Transfers
    record: Record
    crews: Crews
    memory: dict[int, MemoryTrack]
    done: dict[Operation, Event]
    holdings: dict[int, Holding]
    contention: Contention
    first: dict[int, Operation] = field(default_factory=dict)
    last: dict[int, Operation] = field(default_factory=dict)
    marks: dict[Operation, dict[int, Event]] = field(default_factory=dict)
    gates: dict[Operation, tuple[Gate, ...]] = field(default_factory=dict)

    def reached(self, mark: Milestone) -> Event:
        """Give the event of a milestone; to be asked for before time passes."""
        operation, num_ops = mark
        if num_ops == self.plan.slices[operation.slice_index].num_ops:
            return self.done[operation]
        events = self.marks.setdefault(operation, {})
        return events.setdefault(num_ops, self.env.event())


def run_operation(
    world: World, operation: Operation, waits: Iterable[Event], duration_s: float
) -> Story:
    """Compute one forward or backward on all devices of its slice, once all `waits` are over."""
    item = world.plan.slices[operation.slice_index]
    metaop = world.metaops[item.metaop]
    yield world.env.all_of(waits)
    started_s = world.env.now
    _hold(world, operation, item, metaop)
    waited_s = 0.0
    if operation in world.gates:
        waited_s = yield from _compute_gated(world, operation, item, duration_s)
    else:
        yield from _compute(world, operation, item, duration_s)
    _free(world, operation, item, metaop)
    world.record.operation(
        item,
        metaop,
        Phase.BACKWARD if operation.backward else Phase.FORWARD,
        started_s,
        end_s=world.env.now,
        micro_batch=operation.micro_batch,
        wait_s=waited_s,
    )
    world.done[operation].succeed()


def run_flow(
    world: World, flow: Flow, given: Operation, boundaries: Boundaries, arrived: Event
) -> Story:
    """Move activations forward, or gradients back, as soon as they are there."""
    yield world.done[given]
    if world.network is not None:
        phase = Phase.BACKWARD if given.backward else Phase.FORWARD
        ready = world.traffic.crossings.get((flow.source_slice, flow.target_slice, phase))
        if ready is None:
            transfers = world.transfers
            ready = crossing(boundaries.of(flow, phase), transfers.links, transfers.estimator)
        yield world.transfers.start(ready, given.micro_batch)
    arrived.succeed()


def run_collective(
    world: World,
    devices: tuple[int, ...],
    demands: Sequence[Demand],
    waits: Iterable[Event],
    *,
    size_bytes: float,
    finished: Event,
) -> Story:
    """All-reduce gradients of one parameter group once all of its devices have come to it.

    Or gather its parameters.
    """
    yield world.env.all_of(waits)
    started_s = world.env.now
    if world.network is not None:
        crew = world.crews.of(devices)
        world.contention.begin(crew)
        yield world.network.transmit(demands)
        world.contention.end(crew)
        world.record.sync(devices, started_s, world.env.now, size_bytes)
    finished.succeed()


def run_optimizer(world: World, device: int, waits: Iterable[Event], duration_s: float) -> Story:
    """Step the optimizer of one device once all of its gradients are synchronized."""
    yield world.env.all_of(waits)
    started_s = world.env.now
    yield world.env.timeout(duration_s)
    world.record.optimizer(device, started_s, world.env.now)


def _compute(world: World, operation: Operation, item: Slice, duration_s: float) -> Story:
    """Compute, and tell of each part that something waits for."""
    crew = world.crews.slices[operation.slice_index]
    ended = 0
    for num_ops, reached in sorted(world.marks.get(operation, {}).items()):
        part_s = duration_s * (num_ops - ended) / item.num_ops
        yield from world.contention.compute(crew, part_s)
        reached.succeed()
        ended = num_ops
    rest_s = duration_s * (item.num_ops - ended) / item.num_ops if ended else duration_s
    yield from world.contention.compute(crew, rest_s)


def _compute_gated(
    world: World, operation: Operation, item: Slice, duration_s: float
) -> Generator[Event, object, float]:
    """Compute operator by operator, each once its parameters are there; give how long they took."""
    waited_s = 0.0
    crew = world.crews.slices[operation.slice_index]
    marks = world.marks.get(operation, {})
    for number, gate in enumerate(world.gates[operation]):
        if gate.gathered is not None and not gate.gathered.processed:
            stopped_s = world.env.now
            yield gate.gathered
            waited_s += world.env.now - stopped_s
        gate.begun.succeed()
        yield from world.contention.compute(crew, duration_s / item.num_ops)
        if number + 1 in marks:
            marks[number + 1].succeed()
    return waited_s


def _hold(world: World, operation: Operation, item: Slice, metaop: MetaOp) -> None:
    """Add to its devices' memory what an operation holds when it begins."""
    if world.record.silent:
        return
    micro_batches = world.plan.micro_batches(item.round)
    held = recomputed_bytes if operation.backward else kept_bytes
    held_bytes = held(item, metaop, micro_batches)
    for device in world.crews.slices[operation.slice_index]:
        gathered_bytes = world.holdings[device].gathered_bytes
        if gathered_bytes and world.first[device] == operation:
            world.memory[device].keep(world.env.now, gathered_bytes, "gathered")
        if held_bytes:
            world.memory[device].keep(world.env.now, held_bytes, operation)


def _free(world: World, operation: Operation, item: Slice, metaop: MetaOp) -> None:
    """Drop what the backward recomputed and what the forward kept."""
    if world.record.silent:
        return
    for device in world.crews.slices[operation.slice_index]:
        track = world.memory[device]
        if operation.backward:
            if recomputed_bytes(item, metaop):
                track.free(world.env.now, operation)
            if kept_bytes(item, metaop):
                track.free(world.env.now, operation._replace(backward=False))
        if world.holdings[device].gathered_bytes and world.last[device] == operation:
            track.free(world.env.now, "gathered")
