"""One iteration of a plan on simpy: sets the stage, lets time pass, gives the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log1p, sqrt

import numpy as np
import simpy
from simpy.events import Event

from spindle_sim.errors import UsageError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import Operation, operation_order, schedule
from spindle_sim.simulator.collectives import all_reduce_demand
from spindle_sim.simulator.contention import DEFAULT_SLOWDOWN, Contention
from spindle_sim.simulator.holdings import holdings
from spindle_sim.simulator.links import cluster_links
from spindle_sim.simulator.memory import MemoryTrack
from spindle_sim.simulator.network import Network
from spindle_sim.simulator.record import Record
from spindle_sim.simulator.steps import World, run_flow, run_operation, run_optimizer, run_sync
from spindle_sim.simulator.sync import DEFAULT_BUCKET_BYTES, SyncStep, sync_steps
from spindle_sim.simulator.transfers import Transfers
from spindle_sim.timeline import Phase, Timeline

__all__ = ["SimulatorBackend", "simulate"]


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
    `plan.overlap_sync` has the same effect.
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
    overlap_sync = overlap_sync or plan.overlap_sync
    steps = sync_steps(plan, schedule(plan), overlap=overlap_sync, bucket_bytes=bucket_bytes)
    slowdown = overlap_slowdown if overlap_sync else 1.0
    estimator = estimator or Estimator(plan.cluster)
    world = _world(plan, estimator, network=network, slowdown=slowdown)
    order = operation_order(plan)
    noise = _noise(len(order) + plan.cluster.num_devices, jitter, seed)
    last = _start_operations(world, order, noise[: len(order)])
    synced = _start_syncs(world, steps, estimator)
    _start_optimizers(world, estimator, last, synced, noise=noise[len(order) :])
    world.env.run()
    assert all(event.processed for event in world.done.values()), "an operation never ran"
    return Timeline(
        backend="simulator",
        num_devices=plan.cluster.num_devices,
        spans=world.record.spans(),
        memory=tuple(
            sample for device in sorted(world.memory) for sample in world.memory[device].samples
        ),
    )


def _check(jitter: float, bucket_bytes: float, overlap_slowdown: float) -> None:
    if not 0 <= jitter <= 1:
        raise UsageError(f"jitter is {jitter}; give 0 (none) to 1, such as 0.05")
    if not bucket_bytes > 0:
        raise UsageError(f"bucket_bytes is {bucket_bytes}; give more than 0, such as 200e6")
    if not 1 <= overlap_slowdown < inf:
        raise UsageError(f"overlap_slowdown is {overlap_slowdown}; give 1 (none) or more")


def _world(plan: Plan, estimator: Estimator, *, network: bool, slowdown: float) -> World:
    env = simpy.Environment()
    links = cluster_links(plan.cluster)
    record = Record()
    fluid = Network(env, links.capacities)
    held = holdings(plan)
    return World(
        env=env,
        plan=plan,
        metaops=plan.metaop_by_id(),
        slices=plan.slice_by_id(),
        network=fluid if network else None,
        transfers=Transfers(env, links, fluid, record, estimator),
        record=record,
        memory={
            device: MemoryTrack(device, holding.state_bytes) for device, holding in held.items()
        },
        done={operation: env.event() for operation in operation_order(plan)},
        holdings=held,
        contention=Contention(env, slowdown),
    )


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
        for device in world.plan.slices[operation.slice_index].devices:
            if device in last:
                waits[operation][last[device]] = None
            last[device] = world.done[operation]
    _start_flows(world, waits)
    for operation, factor in zip(order, noise, strict=True):
        item = world.plan.slices[operation.slice_index]
        duration_s = (item.backward_s if operation.backward else item.forward_s) * factor
        world.env.process(run_operation(world, operation, tuple(waits[operation]), duration_s))
    return last


def _start_flows(world: World, waits: dict[Operation, dict[Event, None]]) -> None:
    index_of = {item.id: index for index, item in enumerate(world.plan.slices)}
    for flow in world.plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        ways = [(source, target, Phase.FORWARD)]
        if flow.gradient:
            ways.append((target, source, Phase.BACKWARD))
        for giver, taker, phase in ways:
            given = Operation(slice_index=giver, backward=phase is Phase.BACKWARD)
            taken = Operation(slice_index=taker, backward=phase is Phase.BACKWARD)
            if given in world.done and taken in world.done:
                arrived = world.env.event()
                waits[taken][arrived] = None
                world.env.process(run_flow(world, flow, phase, world.done[given], arrived))


def _start_syncs(world: World, steps: Sequence[SyncStep], estimator: Estimator) -> dict[int, Event]:
    """Start a process for each step; give the last one's end per device."""
    links = world.transfers.links
    last: dict[int, Event] = {}
    for step in steps:
        waits = {world.reached(mark): None for mark in step.after}
        waits |= {last[device]: None for device in step.devices if device in last}
        finished = world.env.event()
        demand = all_reduce_demand(estimator, links, step.size_bytes, step.devices)
        world.env.process(
            run_sync(
                world,
                step.devices,
                demand,
                tuple(waits),
                size_bytes=step.size_bytes,
                finished=finished,
            )
        )
        last |= dict.fromkeys(step.devices, finished)
    return last


def _start_optimizers(
    world: World,
    estimator: Estimator,
    last: dict[int, Event],
    synced: dict[int, Event],
    *,
    noise: Sequence[float],
) -> None:
    for device, holding in world.holdings.items():
        if holding.stepped:
            waits = [last[device], *([synced[device]] if device in synced else [])]
            duration_s = estimator.optimizer_step_s(holding.stepped) * noise[device]
            world.env.process(run_optimizer(world, device, waits, duration_s))
