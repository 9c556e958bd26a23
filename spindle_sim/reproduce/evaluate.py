"""Plans and simulates one case under all of its strategies: what a worker process does."""

import time
from collections.abc import Iterable, Iterator
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
from spindle_sim.reproduce.cases import FAMILY, GPUS_PER_NODE, Case, Change
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.placement import placed_in_order
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Timeline
from spindle_sim.workload import Workload

__all__ = ["evaluate_case", "the_cluster"]

_BINS = 200
_ISOLATED = ("spindle", "seq")  # those of figure 10
_STATE_BYTES = PARAMETER_BYTES + OPTIMIZER_BYTES  # gradients aren't saved


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What the strategies of a case share."""

    workload: Workload
    cluster: Cluster
    estimator: Estimator
    change: Change
    seed: int


def the_cluster(gpus: int, change: Change | None = None) -> Cluster:
    """Give the paper's cluster of so many A800, with a change."""
    change = change or Change()
    cluster = parse_cluster(f"a800:{gpus // GPUS_PER_NODE}x{GPUS_PER_NODE}")
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes * change.memory)
    return replace(
        cluster,
        gpu=gpu,
        nics_per_node=change.nics_per_node,
        nic_bandwidth_bytes_per_s=cluster.nic_bandwidth_bytes_per_s * change.nic,
    )


def evaluate_case(case: Case, seed: int) -> CaseResult:
    """Plan and simulate a case; a strategy without a feasible plan is an outcome, too.

    Where one strategy uses ZeRO-1 all of Spindle's family get it, as in `spindle compare`: it makes
    the optimizer step shorter. The tuned systems choose for themselves.
    """
    change = case.change
    cluster = the_cluster(case.gpus, change)
    models = device_models()
    scaled = [replace(one, launch_s=one.launch_s * change.launch) for one in models.devices]
    world = _World(
        workload=evaluated_workload(case.workload, case.tasks, case.batch_scale * change.batch),
        cluster=cluster,
        estimator=Estimator(cluster, models=replace(models, devices=tuple(scaled))),
        change=change,
        seed=seed,
    )
    names = [name for name in case.strategies if name in STRATEGIES]
    planned = {name: _plan(world, name) for name in names}
    if any(plan.zero1 for plan, _, _ in planned.values() if plan):
        for name in names:
            plan = planned[name][0]
            if name in FAMILY and plan is not None and not plan.zero1:
                planned[name] = _plan(world, name, zero1=True)
    spindle = planned.get("spindle", (None, "", 0.0))[0]
    sequential = None
    if case.sequential and spindle is not None:
        sequential = _outcome(world, "spindle", (placed_in_order(spindle), "", 0.0))
    return CaseResult(
        case=case,
        outcomes=tuple(_outcome(world, name, found) for name, found in planned.items()),
        sequential=sequential,
        state_bytes=_STATE_BYTES * world.workload.parameters,
        profile=next((plan.profile for plan, _, _ in planned.values() if plan), ""),
    )


_Planned = tuple[Plan | None, str, float]


def _plan(world: _World, name: str, *, zero1: bool | None = None) -> _Planned:
    """Give the plan, or why there is none, and the wall time that it took."""
    begun_s = time.perf_counter()
    plan, error = None, ""
    try:
        plan = make_plan(
            world.workload,
            world.cluster,
            name,
            seed=world.seed,
            zero1=zero1,
            estimator=world.estimator,
        )
    except InfeasibleError as refused:
        error = str(refused)
    return plan, error, time.perf_counter() - begun_s


def _outcome(world: _World, name: str, planned: _Planned) -> Outcome:
    """Simulate a plan as it is trained, and with its synchronization isolated (section 5.4)."""
    plan, error, planning_s = planned
    if plan is None:
        return Outcome(strategy=name, error=error, planning_s=planning_s)
    trained = _simulated(world, plan, overlap=world.change.overlap_sync)
    isolated = _simulated(world, plan, overlap=False) if name in _ISOLATED else trained
    return _figures(plan, trained, isolated, planning_s)


def _simulated(world: _World, plan: Plan, *, overlap: bool) -> Timeline:
    """Simulate a plan; whether gradients synchronize beside the backward isn't left to it."""
    return simulate(
        replace(plan, overlap_sync=overlap),
        network=not world.change.free_network,
        seed=world.seed,
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
