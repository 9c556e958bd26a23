"""From workload and cluster to a plan, under any strategy.

One that drafts gets its plan from `drafted`; Spindle's is the best of its own and those of the
strategies that it is compared with: whatever they do well, it may do too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError, UsageError
from spindle_sim.estimate import Estimator, Profile
from spindle_sim.plan import Plan, schedule
from spindle_sim.planner.accumulate import accumulation, cut
from spindle_sim.planner.allocate import optimum_by_equation_11
from spindle_sim.planner.context import Context, NamedStrategy, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.drafted import Found, Job, best_drafted, least
from spindle_sim.planner.strategies.deepspeed import deepspeed
from spindle_sim.planner.strategies.megatron import megatron
from spindle_sim.planner.strategies.optimus import optimus
from spindle_sim.planner.strategies.seq import seq
from spindle_sim.planner.strategies.spindle import spindle
from spindle_sim.planner.strategies.stmm import stmm
from spindle_sim.planner.strategies.uniform import uniform
from spindle_sim.workload import Workload

__all__ = ["PLACEMENTS", "STRATEGIES", "NamedStrategy", "equation_11_s", "make_plan"]

PLACEMENTS = ("spindle", "sequential")

# Tasks x devices up to which tuning takes seconds.
LARGEST_TUNED = 256

# What is forecast to be so little better than a strategy's own plan may as well be worse.
CLOSE = 1.003


STRATEGIES: dict[str, NamedStrategy] = {
    "spindle": NamedStrategy(
        draft=spindle,
        summary="all tasks' operators planned jointly",
        chooses_rounds=True,
        considers=("seq", "uniform", "optimus"),
        considers_exposed=(("stmm", 1.05), ("megatron", 1.25)),
    ),
    "seq": NamedStrategy(
        draft=seq, summary="task after task on all devices", one_task_a_round=True
    ),
    "uniform": NamedStrategy(draft=uniform, summary="equally many devices to each task"),
    "optimus": NamedStrategy(draft=optimus, summary="devices to tasks by marginal gain"),
    "stmm": NamedStrategy(
        draft=stmm, summary="task after task, each planned for itself", one_task_a_round=True
    ),
    "megatron": NamedStrategy(
        whole=megatron,
        summary="task after task; tensor, pipeline, data parallelism tuned for each",
        one_task_a_round=True,
    ),
    "deepspeed": NamedStrategy(
        whole=deepspeed,
        summary="task after task; data parallelism with ZeRO tuned for each",
        one_task_a_round=True,
    ),
}


def make_plan(
    workload: Workload,
    cluster: Cluster,
    strategy: str = "spindle",
    *,
    profile: Profile | None = None,
    placement: str = "spindle",
    seed: int = 0,
    zero1: bool | None = None,
    overlap_sync: bool | None = None,
    estimator: Estimator | None = None,
) -> Plan:
    """Give the plan of one training iteration of `workload` on `cluster`.

    `zero1` shards the optimizer states over each parameter group, or not; without it that is done
    where the memory asks for it. `overlap_sync` says whether gradients will synchronize beside the
    backward; without it the plan is to be good either way. `estimator`, where given, is used
    instead of a new one (its curves are remembered).

    Raises:
        UsageError: no such strategy or placement.
        InfeasibleError: some device's memory can't hold its part, whatever is recomputed.
    """
    named = _strategy(strategy)
    _check_placement(placement)
    estimator = estimator or Estimator(cluster, profile)
    context = Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=estimator,
        settings=Settings(tp=()),
        seed=seed,
    )
    if named.whole is not None:
        return named.whole(context, zero1)
    job = Job(
        name=strategy, strategy=named, placement=placement, zero1=zero1, overlap_sync=overlap_sync
    )
    return _best(context, job)


def equation_11_s(plan: Plan) -> float:
    """Give C* by equation (11) as printed, summed over MetaLevels, under a plan's settings."""
    graph = contract(plan.workload)
    modules = {metaop.id: metaop.module for metaop in plan.metaops}
    recomputed: dict[str, int] = {}
    for item in plan.slices:
        if item.recompute:
            recomputed[item.metaop] = recomputed.get(item.metaop, 0) + item.num_ops
    settings = Settings(
        tp=tuple({modules[item.metaop]: item.tp for item in plan.slices}.items()),
        recompute=recomputed,
    )
    context = Context(
        workload=plan.workload,
        cluster=plan.cluster,
        graph=graph,
        estimator=Estimator(plan.cluster),
        settings=settings,
    )
    if accumulation(plan) > 1:
        context = cut(context, accumulation(plan))
    return context.micro_batches * sum(
        optimum_by_equation_11(
            [context.malleable(node.metaop.id) for node in context.graph.level(level)],
            plan.cluster.num_devices,
        )
        for level in range(graph.num_levels)
    )


def _best(empty: Context, job: Job) -> Plan:
    """Give the best plan of a strategy that drafts, or of those that it considers too."""
    found: list[Found] = []
    refused: InfeasibleError | None = None
    for strategy in (job.strategy, *(STRATEGIES[name] for name in job.strategy.considers)):
        try:
            one = best_drafted(empty, replace(job, strategy=strategy), found)
        except InfeasibleError as error:
            refused = refused or error
            continue
        found += [one] if one else []
    if not found:
        assert refused is not None, "there is always at least one choice of settings"
        raise refused
    for name, exposed in job.strategy.considers_exposed:
        best = least(found, close=CLOSE)
        if best.forecast.beside_s > exposed * schedule(best.plan).makespan_s:
            with suppress(InfeasibleError):
                found += _considered(empty, job, STRATEGIES[name], found)
    return least(found, close=CLOSE).plan


def _considered(
    empty: Context, job: Job, strategy: NamedStrategy, found: Sequence[Found]
) -> list[Found]:
    """Give another strategy's plan, unless it can't be better or be told how it compares.

    One that makes its plan itself synchronizes beside the backward, whatever else is asked for.
    """
    if strategy.whole is None:
        one = best_drafted(empty, replace(job, strategy=strategy), found)
        return [one] if one else []
    tuned = len(empty.workload.tasks) * empty.cluster.num_devices
    if job.overlap_sync is False or tuned > LARGEST_TUNED:
        return []
    plan = replace(strategy.whole(empty, job.zero1), strategy=job.name)
    # The forecast knows no other collectives.
    return [job.found(empty, plan)] if plan.zero_stage <= 1 else []


def _strategy(name: str) -> NamedStrategy:
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no strategy {name!r}: they are {', '.join(STRATEGIES)}{hint}")
    return STRATEGIES[name]


def _check_placement(name: str) -> None:
    if name not in PLACEMENTS:
        raise UsageError(f"no placement {name!r}: they are {', '.join(PLACEMENTS)}")
