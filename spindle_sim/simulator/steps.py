"""The processes of one iteration: forward and backward of each slice, synchronization, optimizer.

Each is a short story of what it waits for and how long it lasts; nothing waits for anything else.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import simpy
from simpy.events import Event

from spindle_sim.plan import Flow, MetaOp, Plan, Slice
from spindle_sim.plan.schedule import Operation
from spindle_sim.simulator.contention import Contention
from spindle_sim.simulator.holdings import Holding
from spindle_sim.simulator.memory import MemoryTrack, kept_bytes, recomputed_bytes
from spindle_sim.simulator.network import Demand, Network
from spindle_sim.simulator.record import Record
from spindle_sim.simulator.sync import Milestone
from spindle_sim.simulator.transfers import Boundary, Transfers
from spindle_sim.timeline import Phase

__all__ = ["Story", "World", "run_flow", "run_operation", "run_optimizer", "run_sync"]

Story = Generator[Event, object, None]


@dataclass(slots=True)
class World:
    """What the processes of one run share.

    `done` has an event for each operation, `marks` for each part of one that something waits for:
    by how many operators have ended.
    """

    env: simpy.Environment
    plan: Plan
    metaops: dict[str, MetaOp]
    slices: dict[str, Slice]
    network: Network | None  # None: transfers and collectives are free
    transfers: Transfers
    record: Record
    memory: dict[int, MemoryTrack]
    done: dict[Operation, Event]
    holdings: dict[int, Holding]
    contention: Contention
    marks: dict[Operation, dict[int, Event]] = field(default_factory=dict)

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
    held_bytes = _held_bytes(operation, item, metaop)
    if held_bytes:
        for device in item.devices:
            world.memory[device].keep(started_s, held_bytes)
    ended = 0
    for num_ops, reached in sorted(world.marks.get(operation, {}).items()):
        part_s = duration_s * (num_ops - ended) / item.num_ops
        yield from world.contention.compute(item.devices, part_s)
        reached.succeed()
        ended = num_ops
    rest_s = duration_s * (item.num_ops - ended) / item.num_ops if ended else duration_s
    yield from world.contention.compute(item.devices, rest_s)
    if operation.backward:
        _free(world, item, metaop)
    phase = Phase.BACKWARD if operation.backward else Phase.FORWARD
    world.record.operation(item, metaop, phase, started_s, end_s=world.env.now)
    world.done[operation].succeed()


def run_flow(world: World, flow: Flow, phase: Phase, ready: Event, arrived: Event) -> Story:
    """Move activations forward, or gradients back, as soon as they are there."""
    yield ready
    source, target = world.slices[flow.source_slice], world.slices[flow.target_slice]
    if phase is Phase.BACKWARD:
        source, target = target, source
    if world.network is not None:
        task = world.metaops[source.metaop].task
        yield world.transfers.start(
            Boundary(source=source, target=target, size_bytes=flow.bytes, phase=phase, task=task)
        )
    arrived.succeed()


def run_sync(
    world: World,
    devices: tuple[int, ...],
    demand: Demand,
    waits: Iterable[Event],
    *,
    size_bytes: float,
    finished: Event,
) -> Story:
    """All-reduce gradients of one parameter group once all of its devices have come to it."""
    yield world.env.all_of(waits)
    started_s = world.env.now
    if world.network is not None:
        world.contention.begin(devices)
        yield world.network.transmit([demand])
        world.contention.end(devices)
        world.record.sync(devices, started_s, world.env.now, size_bytes)
    finished.succeed()


def run_optimizer(world: World, device: int, waits: Iterable[Event], duration_s: float) -> Story:
    """Step the optimizer of one device once all of its gradients are synchronized."""
    yield world.env.all_of(waits)
    started_s = world.env.now
    yield world.env.timeout(duration_s)
    world.record.optimizer(device, started_s, world.env.now)


def _held_bytes(operation: Operation, item: Slice, metaop: MetaOp) -> float:
    """Give what an operation adds to its devices' memory when it begins."""
    if operation.backward:
        return recomputed_bytes(item, metaop)
    return kept_bytes(item, metaop)


def _free(world: World, item: Slice, metaop: MetaOp) -> None:
    """Drop what the backward recomputed and what the forward kept."""
    levels = bool(recomputed_bytes(item, metaop)) + bool(kept_bytes(item, metaop))
    for device in item.devices:
        for _ in range(levels):
            world.memory[device].free(world.env.now)
