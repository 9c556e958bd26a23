"""From workload and cluster to a plan: contract, choose settings, draft, place, assemble.

What doesn't fit a device's memory is met here: more recomputation where the device is short, then
the next settings (ZeRO-1, tensor parallelism), micro-batches where they are faster or alone fit,
then an error that says what would make it fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError, UsageError
from spindle_sim.estimate import Estimator, Profile
from spindle_sim.plan import Plan, schedule
from spindle_sim.planner.accumulate import (
    accumulation,
    can_shrink,
    cut,
    cuts,
    heaviest_last,
    is_memory_bound,
)
from spindle_sim.planner.allocate import optimum_by_equation_11
from spindle_sim.planner.assemble import assemble
from spindle_sim.planner.context import Context, Settings, Strategy, WholeStrategy
from spindle_sim.planner.contract import contract
from spindle_sim.planner.forecast import forecast_s, overlapped_s
from spindle_sim.planner.memory_fit import OutOfMemoryError
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.place import place
from spindle_sim.planner.recompute import free_on_device, split
from spindle_sim.planner.settings import (
    Choice,
    choose,
    degrees,
    joint_optimum_s,
    task_groups,
)
from spindle_sim.planner.strategies.deepspeed import deepspeed
from spindle_sim.planner.strategies.megatron import megatron
from spindle_sim.planner.strategies.optimus import optimus
from spindle_sim.planner.strategies.seq import seq
from spindle_sim.planner.strategies.spindle import spindle
from spindle_sim.planner.strategies.stmm import stmm
from spindle_sim.planner.strategies.uniform import uniform
from spindle_sim.workload import Workload

__all__ = ["PLACEMENTS", "STRATEGIES", "NamedStrategy", "equation_11_s", "make_plan"]

# Ways to form rounds that leave about the best optimum are all planned: the forecast decides.
ALTERNATIVES = 2
NEAR = 1.004

# Plans end within this of their optimum nearly always: where one doesn't, those of a somewhat
# higher optimum may end earlier.
USUAL = 1.05

# Placement trades transfers against synchronization by an estimate; both sides of it are tried.
SYNC_WEIGHT = 4.0

PLACEMENTS = ("spindle", "sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStrategy:
    """A strategy, what it is in a line, and how it may group tasks into rounds.

    One that isn't drafted makes its plan itself: the settings are what it is about.
    """

    summary: str
    draft: Strategy | None = None
    whole: WholeStrategy | None = None
    one_task_a_round: bool = False
    chooses_rounds: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether its plans synchronize beside the backward: all must be let, to be compared."""
        return self.whole is not None


STRATEGIES: dict[str, NamedStrategy] = {
    "spindle": NamedStrategy(
        draft=spindle, summary="all tasks' operators planned jointly", chooses_rounds=True
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
    estimator: Estimator | None = None,
) -> Plan:
    """Give the plan of one training iteration of `workload` on `cluster`.

    `zero1` shards the optimizer states over each parameter group, or not; without it that is done
    where the memory asks for it. `estimator`, where given, is used instead of a new one (its curves
    are remembered).

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
    return _best_drafted(context, strategy, named, placement, zero1=zero1)


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


def _best_drafted(
    empty: Context, strategy: str, named: NamedStrategy, placement: str, *, zero1: bool | None
) -> Plan:
    """Give the best plan of a strategy, in micro-batches where memory asks for it.

    `empty` has no settings. Only the last micro-batch has gradients to synchronize beside it, so
    cutting has to pay both with and without overlapped synchronization.
    """
    best: tuple[float, float, Plan] | None = None
    refused: InfeasibleError | None = None
    for context in cuts(empty):
        try:
            plan = _drafted(context, strategy, named, placement, zero1=zero1)
        except InfeasibleError as error:
            refused = refused or error
            if best is not None or not can_shrink(context):
                break
            continue
        seconds = forecast_s(plan, empty.estimator)
        beside_s = overlapped_s(plan, empty.estimator)
        if best is not None and (seconds >= best[0] or beside_s >= best[1]):
            break
        best = _hidden(empty, (seconds, beside_s, plan))
        if not is_memory_bound(context, plan, chooses_rounds=named.chooses_rounds):
            break
    if best is not None:
        return best[2]
    assert refused is not None, "there is always at least one choice of settings"
    raise refused


def _hidden(empty: Context, found: tuple[float, float, Plan]) -> tuple[float, float, Plan]:
    """Give a plan with its rounds in another order, where that hides more synchronization."""
    if len({item.round for item in found[2].slices}) == 1:
        return found
    plan = heaviest_last(empty, found[2])
    seconds, beside_s = forecast_s(plan, empty.estimator), overlapped_s(plan, empty.estimator)
    if beside_s < found[1] * (1 - 1e-9) and seconds <= found[0] * (1 + 1e-9):
        return seconds, beside_s, plan
    return found


def _drafted(
    empty: Context, strategy: str, named: NamedStrategy, placement: str, *, zero1: bool | None
) -> Plan:
    """Give the best plan of a strategy under any settings; `empty` has none."""
    choices: list[tuple[Choice, Context]] = []
    for settings in degrees(empty.workload, empty.graph, empty.cluster, zero1=zero1):
        context = replace(empty, settings=settings)
        found = choose(context, list(_groupings(context, named)))
        # The one with most rounds keeps least activations at a time: a last resort.
        roomiest = max(found, key=lambda choice: len(choice.settings.rounds))
        kept = [
            *found[:ALTERNATIVES],
            *([roomiest] if roomiest not in found[:ALTERNATIVES] else []),
        ]
        choices += [(choice, context) for choice in kept]
    choices.sort(key=lambda pair: pair[0].optimum_s)
    plans: list[Plan] = []
    asked_more = False
    refused: InfeasibleError | None = None
    for choice, context in choices:
        if plans and choice.optimum_s > NEAR * choices[0][0].optimum_s:
            if asked_more or not _may_end_earlier(choice, plans):
                break
            asked_more = True
        try:
            plans.append(_plan(context, choice, strategy, named, placement))
        except InfeasibleError as error:
            refused = refused or error
    if plans:
        return min(plans, key=lambda plan: forecast_s(plan, empty.estimator))
    assert refused is not None, "there is always at least one choice of settings"
    raise refused


def _may_end_earlier(choice: Choice, plans: Sequence[Plan]) -> bool:
    """Tell whether a choice that fits as it is may give a plan that beats those there are."""
    reached_s = min(schedule(plan).makespan_s for plan in plans)
    fits = not choice.settings.recompute and not choice.misfit
    return fits and USUAL * choice.optimum_s <= reached_s


def _plan(context: Context, choice: Choice, name: str, named: NamedStrategy, method: str) -> Plan:
    """Draft and place, recomputing more while no draft fits the devices' memory."""
    settings = choice.settings
    assert named.draft is not None, f"{name} drafts no plan"
    while True:
        tried = replace(context, settings=settings)
        optimum_s = joint_optimum_s(tried)
        best: tuple[float, Plan, tuple[DraftSlice, ...]] | None = None
        refused: tuple[OutOfMemoryError, tuple[DraftSlice, ...]] | None = None
        for whole in named.draft(tried):
            drafts = split(whole, settings.recompute)
            if best is not None and _least_s(tried, drafts) >= best[0]:
                continue
            try:
                devices = place(tried, drafts, method=method)
            except OutOfMemoryError as error:
                refused = refused or (error, drafts)
                continue
            plan = assemble(tried, drafts, devices, strategy=name, optimum_s=optimum_s)
            seconds = forecast_s(plan, context.estimator)
            if best is None or seconds < best[0]:
                best = seconds, plan, drafts
        if best is not None:
            return _less_synchronized(tried, best[1], best[2], method)
        assert refused is not None, f"{name}: gives no draft"
        shortage, drafts = refused
        more = free_on_device(tried, shortage.metaops, shortage.short_bytes, drafts)
        if not more:
            raise shortage
        settings = replace(settings, recompute=more)


def _least_s(context: Context, drafts: tuple[DraftSlice, ...]) -> float:
    """Give what no placement of the drafts can beat: their device-time over all devices."""
    used_s = sum(
        draft.num_devices
        * draft.num_ops
        * context.curve(draft.metaop, recompute=draft.recompute).time_s(draft.num_devices)
        for draft in drafts
    )
    return context.micro_batches * used_s / context.cluster.num_devices


def _less_synchronized(
    context: Context, plan: Plan, drafts: tuple[DraftSlice, ...], method: str
) -> Plan:
    """Place the drafts again with synchronization weighing more; give the better plan."""
    if all(draft.devices is not None for draft in drafts):
        return plan
    try:
        devices = place(context, drafts, method=method, sync_weight=SYNC_WEIGHT)
    except OutOfMemoryError:
        return plan
    other = assemble(context, drafts, devices, strategy=plan.strategy, optimum_s=plan.optimum_s)
    return min(plan, other, key=lambda one: forecast_s(one, context.estimator))


def _groupings(context: Context, named: NamedStrategy) -> Iterator[tuple[tuple[str, ...], ...]]:
    tasks = tuple(task.name for task in context.workload.tasks)
    if named.one_task_a_round:
        yield tuple((task,) for task in tasks)
        return
    yield (tasks,)
    if named.chooses_rounds:
        for count in (2, 3, 4, 5, 6, 8, 12, 16, 32):
            if count <= len(tasks):
                yield task_groups(context, count)


def _strategy(name: str) -> NamedStrategy:
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no strategy {name!r}: they are {', '.join(STRATEGIES)}{hint}")
    return STRATEGIES[name]


def _check_placement(name: str) -> None:
    if name not in PLACEMENTS:
        raise UsageError(f"no placement {name!r}: they are {', '.join(PLACEMENTS)}")
