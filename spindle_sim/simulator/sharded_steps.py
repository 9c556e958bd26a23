"""The processes of ZeRO stages 2 and 3: gathering ahead of operators, scattering behind them."""

from collections.abc import Iterable, Sequence

from simpy.events import Event

from spindle_sim.plan.schedule import Operation
from spindle_sim.simulator.sharding import Bucket, Vector
from spindle_sim.simulator.steps import Gate, Story, World
from spindle_sim.simulator.sync import Milestone

__all__ = ["start_sharded"]


def start_sharded(world: World, order: Sequence[Operation]) -> dict[int, Event]:
    """Start what the operations gather and scatter; give the last one's end per device.

    Devices are those that stand for others.
    """
    before: dict[int, Event] = {}  # on each device: its last operation so far is at its last gate
    scattered: dict[int, Event] = {}
    for operation in order:
        sharded = world.traffic.sharded[operation.slice_index]
        crew = world.crews.slices[operation.slice_index]
        if sharded.gathers:
            vectors = sharded.gathers[::-1] if operation.backward else sharded.gathers
            gates = _gates(world, vectors)
            world.gates[operation] = gates
            waits = {before[device]: None for device in crew if device in before}
            world.env.process(_gather(world, vectors, gates, tuple(waits)))
            before |= dict.fromkeys(crew, gates[-1].begun)
        if sharded.buckets and operation.backward:
            own = world.crews.of(
                dict.fromkeys(d for bucket in sharded.buckets for d in bucket.vector.devices)
            )
            waits = {scattered[device]: None for device in own if device in scattered}
            finished = world.env.event()
            reached = [world.reached(Milestone(operation, b.num_ops)) for b in sharded.buckets]
            world.env.process(
                _scatter(world, sharded.buckets, reached, tuple(waits), finished=finished)
            )
            scattered |= dict.fromkeys((*own, *crew), finished)
    return scattered


def _gates(world: World, vectors: Iterable[Vector | None]) -> tuple[Gate, ...]:
    env = world.env
    return tuple(Gate(None if vector is None else env.event(), env.event()) for vector in vectors)


def _gather(
    world: World,
    vectors: Sequence[Vector | None],
    gates: Sequence[Gate],
    waits: Iterable[Event],
) -> Story:
    """Gather the parameters of one operator after the other, each while the one before computes.

    `waits` are until that one computes of which the first operator is the next.
    """
    yield world.env.all_of(waits)
    began_s, size_bytes, devices = 0.0, 0.0, tuple[int, ...]()
    for number, (vector, gate) in enumerate(zip(vectors, gates, strict=True)):
        if number > 0 and not gates[number - 1].begun.processed:
            yield gates[number - 1].begun
        if vector is None or gate.gathered is None:
            continue
        started_s = world.env.now
        yield from _transmit(world, vector)
        gate.gathered.succeed()
        # The first may wait long before its operator. The others follow each other while operators
        # compute or wait for them: one span for all.
        if number == 0:
            world.record.sync(vector.devices, started_s, world.env.now, vector.size_bytes)
            continue
        if not size_bytes:
            began_s, devices = started_s, vector.devices
        size_bytes += vector.size_bytes
    if size_bytes:
        world.record.sync(devices, began_s, world.env.now, size_bytes)


def _scatter(
    world: World,
    buckets: Sequence[Bucket],
    reached: Sequence[Event],
    waits: Iterable[Event],
    *,
    finished: Event,
) -> Story:
    """Reduce-scatter one bucket of gradients after the other, once its operators are done."""
    yield world.env.all_of(waits)
    began_s = 0.0
    for number, (bucket, event) in enumerate(zip(buckets, reached, strict=True)):
        if not event.processed:
            yield event
        if not number:
            began_s = world.env.now
        yield from _transmit(world, bucket.vector)
    devices = dict.fromkeys(d for bucket in buckets for d in bucket.vector.devices)
    size_bytes = sum(bucket.vector.size_bytes for bucket in buckets)
    world.record.sync(devices, began_s, world.env.now, size_bytes)
    finished.succeed()


def _transmit(world: World, vector: Vector) -> Story:
    assert world.network is not None, "without a network nothing is gathered or scattered"
    crew = world.crews.of(vector.devices)
    world.contention.begin(crew)
    yield world.network.transmit(vector.demands)
    world.contention.end(crew)
