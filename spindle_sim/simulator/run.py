"""One iteration of a plan on simpy: sets the stage, lets time pass, gives the timeline."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, log1p, sqrt

import numpy as np
import simpy
from simpy.events import Event

from spindle_sim.errors import UsageError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import Operation, handovers, schedule
from spindle_sim.simulator.contention import DEFAULT_SLOWDOWN, Contention
from spindle_sim.simulator.crews import crews
from spindle_sim.simulator.holdings import holdings
from spindle_sim.simulator.links import cluster_links
from spindle_sim.simulator.memory import MemoryTrack
from spindle_sim.simulator.network import Network
from spindle_sim.simulator.record import Record
from spindle_sim.simulator.sharded_steps import start_sharded
from spindle_sim.simulator.steps import (
    World,
    run_collective,
    run_flow,
    run_operation,
    run_optimizer,
)
from spindle_sim.simulator.sync import DEFAULT_BUCKET_BYTES, SyncStep, sync_steps
from spindle_sim.simulator.traffic import Boundaries, prepare
from spindle_sim.simulator.transfers import Transfers
from spindle_sim.timeline import Timeline

__all__ = ["SimulatorBackend", "simulate", "simulated_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorBackend:
    """The simulator as a backend, with its options."""

    overlap_sync: bool = False
    jitter: float = 0.0
    seed: int = 0
    network: bool = True
    bucket_bytes: float = DEFAULT_BUCKET_BYTES
    overlap_slowdown: float = DEFAULT_SLOWDOWN
    name: str = "simulator"

    def run(self, plan: Plan) -> Timeline:
        """Give what happened in one simulated iteration."""
        return simulate(
            plan,
            overlap_sync=self.overlap_sync,
            jitter=self.jitter,
            seed=self.seed,
            network=self.network,
            bucket_bytes=self.bucket_bytes,
            overlap_slowdown=self.overlap_slowdown,
        )


def simulate(
    plan: Plan,
    *,
    overlap_sync: bool = False,
    jitter: float = 0.0,
    seed: int = 0,
    network: bool = True,
    bucket_bytes: float = DEFAULT_BUCKET_BYTES,
    overlap_slowdown: float = DEFAULT_SLOWDOWN,
    estimator: Estimator | None = None,
) -> Timeline:
    """Replay one iteration of a valid plan, whoever made it.

    `overlap_sync` lets parameter groups synchronize in buckets of about `bucket_bytes`, each as
    soon as its gradients are complete; computing beside it takes `overlap_slowdown` times as long.
    `plan.overlap_sync` has the same effect, and ZeRO stages 2 and 3 overlap by nature.
    `estimator`, where given, says how long links and optimizer steps take, such as one with a
    profile that measured them; the plan says how long slices take.
    `jitter` multiplies every compute duration by lognormal noise of mean 1 and that standard
    deviation, drawn from `seed`. Without `network` transfers and collectives are free. Same
    arguments, same result to the bit.

    Raises:
        UsageError: `jitter` isn't 0 to 1, `bucket_bytes` not above 0, `overlap_slowdown` below 1.
        PlanError: order and flows of the plan form a cycle.
    """
    _check(jitter, bucket_bytes, overlap_slowdown)
    with _uncollected():
        world = _run(
            plan,
            estimator,
            overlap=overlap_sync or plan.overlap_sync,
            noise=(jitter, seed),
            network=network,
            bucket_bytes=bucket_bytes,
            slowdown=overlap_slowdown,
        )
        return Timeline(
            backend="simulator",
            num_devices=plan.cluster.num_devices,
            spans=world.record.spans(),
            memory=tuple(
                sample
                for device in world.holdings
                for sample in world.memory[world.crews.of((device,))[0]].samples(device)
            ),
        )


def simulated_s(plan: Plan, *, estimator: Estimator | None = None) -> float:
    """Give the iteration time that `simulate` gives, in a part of the time: nothing is recorded.

    Raises:
        PlanError: order and flows of the plan form a cycle.
    """
    with _uncollected():
        world = _run(
            plan,
            estimator,
            overlap=plan.overlap_sync,
            noise=(0.0, 0),
            network=True,
            bucket_bytes=DEFAULT_BUCKET_BYTES,
            slowdown=DEFAULT_SLOWDOWN,
            silent=True,
        )
    return world.record.last_s


def _run(
    plan: Plan,
    estimator: Estimator | None,
    *,
    overlap: bool,
    noise: tuple[float, int],
    network: bool,
    bucket_bytes: float,
    slowdown: float,
    silent: bool = False,
) -> World:
    """Let one iteration pass; `noise` is the jitter and its seed."""
    free = schedule(plan)
    order = free.operations
    # From stage 2 on gradients are scattered beside the backward: none are left to be all-reduced.
    sharded = plan.shard_gradients
    steps = () if sharded else sync_steps(plan, free, overlap=overlap, bucket_bytes=bucket_bytes)
    world = _world(
        plan,
        order,
        steps,
        estimator or Estimator(plan.cluster),
        network=network,
        slowdown=slowdown if overlap or sharded else 1.0,
        bucket_bytes=bucket_bytes,
        silent=silent,
    )
    factors = _noise(len(order) + plan.cluster.num_devices, *noise)
    last = _start_operations(world, order, factors[: len(order)])
    synced = start_sharded(world, order) if sharded and network else _start_syncs(world, steps)
    stepped = _start_optimizers(world, last, synced, noise=factors[len(order) :])
    _start_gathers(world, stepped)
    world.env.run()
    assert all(event.processed for event in world.done.values()), "an operation never ran"
    return world


@contextmanager
def _uncollected() -> Iterator[None]:
    """Put off the search for garbage: among a million spans it takes longer than to make them.

    They refer to nothing that refers to them; what isn't used any more goes at once.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _check(jitter: float, bucket_bytes: float, overlap_slowdown: float) -> None:
    if not 0 <= jitter <= 1:
        raise UsageError(f"jitter is {jitter}; give 0 (none) to 1, such as 0.05")
    if not bucket_bytes > 0:
        raise UsageError(f"bucket_bytes is {bucket_bytes}; give more than 0, such as 200e6")
    if not 1 <= overlap_slowdown < inf:
        raise UsageError(f"overlap_slowdown is {overlap_slowdown}; give 1 (none) or more")


def _world(
    plan: Plan,
    order: Sequence[Operation],
    steps: Sequence[SyncStep],
    estimator: Estimator,
    *,
    network: bool,
    slowdown: float,
    bucket_bytes: float,
    silent: bool,
) -> World:
    env = simpy.Environment()
    links = cluster_links(plan.cluster)
    record = Record(silent=silent)
    fluid = Network(env, links.capacities)
    held = holdings(plan)  # by device, ascending
    joined = crews(plan)
    world = World(
        env=env,
        plan=plan,
        metaops=plan.metaop_by_id(),
        slices=plan.slice_by_id(),
        network=fluid if network else None,
        traffic=prepare(plan, links, estimator, steps, bucket_bytes=bucket_bytes),
        transfers=Transfers(env, links, fluid, record, estimator),
        record=record,
        crews=joined,
        memory={
            device: MemoryTrack(holding.state_bytes)
            for device, holding in held.items()
            if joined.of((device,)) == (device,)
        },
        done={operation: env.event() for operation in order},
        holdings=held,
        contention=Contention(env, slowdown),
    )
    for operation in order:
        for device in joined.slices[operation.slice_index]:
            world.first.setdefault(device, operation)
            world.last[device] = operation
    return world


def _noise(count: int, jitter: float, seed: int) -> list[float]:
    """Give factors of mean 1 and standard deviation `jitter`, lognormal: above 0."""
    if not jitter:
        return [1.0] * count
    variance = log1p(jitter**2)  # of the factors' logarithm
    rng = np.random.default_rng(seed)
    return [float(x) for x in rng.lognormal(-variance / 2, sqrt(variance), count)]


def _start_operations(
    world: World, order: Sequence[Operation], noise: Sequence[float]
) -> dict[int, Event]:
    """Start a process for each operation and flow; give the last operation's end per device."""
    waits: dict[Operation, dict[Event, None]] = {operation: {} for operation in order}
    last: dict[int, Event] = {}
    for operation in order:
        for device in world.crews.slices[operation.slice_index]:
            if device in last:
                waits[operation][last[device]] = None
            last[device] = world.done[operation]
    boundaries = Boundaries.of_plan(world.plan)
    for flow, given, taken in handovers(world.plan, world.done):
        arrived = world.env.event()
        waits[taken][arrived] = None
        world.env.process(run_flow(world, flow, given, boundaries, arrived))
    for operation, factor in zip(order, noise, strict=True):
        item = world.plan.slices[operation.slice_index]
        duration_s = (item.backward_s if operation.backward else item.forward_s) * factor
        world.env.process(run_operation(world, operation, tuple(waits[operation]), duration_s))
    return last


def _start_syncs(world: World, steps: Sequence[SyncStep]) -> dict[int, Event]:
    """Start a process for each step; give the last one's end per device."""
    last: dict[int, Event] = {}
    for step, demand in zip(steps, world.traffic.reduces, strict=True):
        waits = {world.reached(mark): None for mark in step.after}
        own = world.crews.of(step.devices)
        waits |= {last[device]: None for device in own if device in last}
        finished = world.env.event()
        world.env.process(
            run_collective(
                world,
                step.devices,
                (demand,),
                tuple(waits),
                size_bytes=step.size_bytes,
                finished=finished,
            )
        )
        last |= dict.fromkeys(own, finished)
    return last


def _start_optimizers(
    world: World, last: dict[int, Event], synced: dict[int, Event], *, noise: Sequence[float]
) -> dict[int, Event]:
    """Start a process for each device with something to step; give their ends."""
    stepped: dict[int, Event] = {}
    for device, holding in world.holdings.items():
        if holding.stepped:
            (leader,) = world.crews.of((device,))
            waits = [last[leader], *([synced[leader]] if leader in synced else [])]
            duration_s = world.transfers.estimator.optimizer_step_s(holding.stepped) * noise[device]
            stepped[device] = world.env.process(run_optimizer(world, device, waits, duration_s))
    return stepped


def _start_gathers(world: World, stepped: dict[int, Event]) -> None:
    """Start what parameter groups gather once their devices have stepped, in one order for all."""
    last = dict(stepped)
    for vector in world.traffic.after_step:
        waits = dict.fromkeys(last[device] for device in vector.devices if device in last)
        finished = world.env.event()
        world.env.process(
            run_collective(
                world,
                vector.devices,
                vector.demands,
                tuple(waits),
                size_bytes=vector.size_bytes,
                finished=finished,
            )
        )
        last |= dict.fromkeys(vector.devices, finished)
