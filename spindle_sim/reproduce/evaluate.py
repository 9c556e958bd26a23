"""Plans and simulates one case under all of its strategies: what a worker process does."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Estimator
from spindle_sim.estimate.device import device_models
from spindle_sim.estimate.memory import OPTIMIZER_BYTES, PARAMETER_BYTES, shard_parameters
from spindle_sim.metrics import summarize, utilization_over_time
from spindle_sim.plan import MetaOp, Plan, Slice, schedule
from spindle_sim.planner import STRATEGIES, make_plan
from spindle_sim.planner.make import equation_11_s
from spindle_sim.reproduce.batches import evaluated_workload
from spindle_sim.reproduce.cases import (
    FAMILY,
    GPUS_PER_NODE,
    UNCHANGED,
    Case,
    Change,
)
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.placement import placed_in_order
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Timeline
from spindle_sim.workload import Workload

__all__ = ["evaluate_case", "planning_time_s", "the_cluster", "the_estimator"]

_BINS = 200
_ISOLATED = ("spindle", "seq")  # those of figure 10
_STATE_BYTES = PARAMETER_BYTES + OPTIMIZER_BYTES  # gradients aren't saved


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What the strategies of a case share."""

    workload: Workload
    cluster: Cluster
    estimator: Estimator
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A strategy's plan, or why there is none, and the wall time that it took."""

    strategy: str
    plan: Plan | None
    error: str
    planning_s: float


def the_cluster(gpus: int, change: Change = UNCHANGED) -> Cluster:
    """Give the paper's cluster of so many A800, with a change."""
    cluster = parse_cluster(f"a800:{gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}")
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes * change.memory)
    return replace(
        cluster,
        gpu=gpu,
        nics_per_node=change.nics_per_node,
        nic_bandwidth_bytes_per_s=cluster.nic_bandwidth_bytes_per_s * change.nic,
    )


def the_estimator(gpus: int, change: Change = UNCHANGED) -> Estimator:
    """Give the estimator for that cluster, with a change."""
    models = device_models()
    devices = [replace(one, launch_s=one.launch_s * change.launch) for one in models.devices]
    return Estimator(the_cluster(gpus, change), models=replace(models, devices=tuple(devices)))


def evaluate_case(case: Case, seed: int) -> tuple[CaseResult, ...]:
    """Plan a case and simulate it, then under each change of `case.also` with the same plans.

    A strategy without a feasible plan is an outcome, too. All of Spindle's family shard their
    optimizer states (ZeRO-1): that makes the step shorter, and the tuned systems, which choose for
    themselves, do so as well.
    """
    estimator = the_estimator(case.gpus, case.change)
    world = _World(
        workload=evaluated_workload(case.workload, case.tasks, case.batch_scale, case.change),
        cluster=estimator.cluster,
        estimator=estimator,
        seed=seed,
    )
    planned = [_plan(world, name) for name in case.strategies if name in STRATEGIES]
    sequential = _sequential(world, case.change, planned) if case.sequential else None
    return tuple(
        CaseResult(
            case=replace(case, change=change, also=()),
            outcomes=tuple(_outcome(world, change, one) for one in planned),
            sequential=_outcome(world, change, sequential) if sequential else None,
            state_bytes=_STATE_BYTES * world.workload.parameters,
            profile=next((one.plan.profile for one in planned if one.plan), ""),
        )
        for change in (case.change, *case.also)
    )


def planning_time_s(case: Case, seed: int) -> float:
    """Give the wall time of planning a case under Spindle alone."""
    (one,) = evaluate_case(replace(case, strategies=("spindle",), also=(), sequential=False), seed)
    return one.outcomes[0].planning_s


def _plan(world: _World, name: str, placement: str = "spindle") -> _Planned:
    begun_s = time.perf_counter()
    plan, error = None, ""
    try:
        plan = make_plan(
            world.workload,
            world.cluster,
            name,
            seed=world.seed,
            placement=placement,
            zero1=True if name in FAMILY else None,
            overlap_sync=True,  # as all systems are compared (`Change`)
            estimator=world.estimator,
        )
    except InfeasibleError as refused:
        error = str(refused)
    planning_s = time.perf_counter() - begun_s
    return _Planned(strategy=name, plan=plan, error=error, planning_s=planning_s)


def _sequential(world: _World, change: Change, planned: Sequence[_Planned]) -> _Planned | None:
    """Give Spindle's plan on consecutive devices: its schedule, or one of its own."""
    if change.sequential_plans:
        return _plan(world, "spindle", placement="sequential")
    spindle = next((one for one in planned if one.strategy == "spindle"), None)
    if spindle is None or spindle.plan is None:
        return None
    return replace(spindle, plan=placed_in_order(spindle.plan), planning_s=0.0)


def _outcome(world: _World, change: Change, planned: _Planned) -> Outcome:
    """Simulate a plan as it is trained, and with its synchronization isolated (section 5.4)."""
    plan, name = planned.plan, planned.strategy
    if plan is None:
        return Outcome(strategy=name, error=planned.error, planning_s=planned.planning_s)
    trained = _simulated(world, change, plan, overlap=change.overlap_sync)
    isolated = trained
    if name in _ISOLATED and change.overlap_sync:
        isolated = _simulated(world, change, plan, overlap=False)
    return _figures(plan, trained, isolated, planned.planning_s)


def _simulated(world: _World, change: Change, plan: Plan, *, overlap: bool) -> Timeline:
    """Simulate a plan; whether gradients synchronize beside the backward isn't left to it."""
    return simulate(
        replace(plan, overlap_sync=overlap), network=not change.free_network, seed=world.seed
    )


def _figures(plan: Plan, trained: Timeline, isolated: Timeline, planning_s: float) -> Outcome:
    summary, parts = summarize(plan, trained), summarize(plan, isolated)
    return Outcome(
        strategy=plan.strategy,
        iteration_s=summary.iteration_s,
        isolated_s=parts.iteration_s,
        forward_backward_s=parts.forward_backward_s,
        sync_s=parts.sync_s - parts.optimizer_s,
        optimizer_s=parts.optimizer_s,
        send_recv_s=parts.send_recv_s,
        idle_s=parts.idle_s,
        end_of_compute_s=max(
            (span.end_s for span in isolated.spans if span.kind is Kind.COMPUTE), default=0.0
        ),
        makespan_s=schedule(plan).makespan_s,
        optimum_s=plan.optimum_s,
        equation_11_s=equation_11_s(plan) if plan.strategy == "spindle" else 0.0,
        utilization=summary.utilization,
        device_utilization=tuple(one.utilization for one in summary.devices),
        metaop_utilization=tuple((one.metaop, one.utilization) for one in summary.metaops),
        over_time=utilization_over_time(plan, trained, _BINS),
        memory_bytes=tuple(one.peak_memory_bytes for one in summary.devices),
        reload_bytes=_reload_bytes(plan),
        rounds=len({item.round for item in plan.slices}),
        recomputed_metaops=len({item.metaop for item in plan.slices if item.recompute}),
        tensor_parallel=max(item.tp for item in plan.slices),
        zero_stage=plan.zero_stage,
        planning_s=planning_s,
    )


def _reload_bytes(plan: Plan) -> float:
    """Give what all nodes read: each node every state that a device of it uses, once.

    States that ZeRO shards beyond a node count as if it read them whole, which is an upper bound.
    """
    metaops = plan.metaop_by_id()
    held: dict[tuple[int, str, int, int, int], float] = {}
    for item in plan.slices:
        metaop = metaops[item.metaop]
        for key in _states(plan, item, metaop):
            held[key] = _STATE_BYTES * shard_parameters(metaop, item.tp)
    return sum(held.values())


def _states(plan: Plan, item: Slice, metaop: MetaOp) -> Iterator[tuple[int, str, int, int, int]]:
    places: Iterable[tuple[int, int]] = {
        (plan.cluster.node_of(device), position % item.tp)
        for position, device in enumerate(item.devices)
    }
    for node, shard in places:
        for index in range(item.first_op, item.first_op + item.num_ops):
            yield node, metaop.parameter_set, index, item.tp, shard
