"""Settings before allocation: tensor parallelism, ZeRO-1, recomputation, rounds, to fit the memory.

The paper tunes these by hand for every system (section 5.1, protocols). Here each choice is judged
by the Theorem 1 optimum that it leaves, from totals over the cluster; whether a device really holds
its share shows in placement, which asks for more recomputation where it doesn't.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import state_bytes
from spindle_sim.planner.allocate import Malleable, optimum
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.metagraph import MetaGraph
from spindle_sim.planner.recompute import free_on_cluster, kept_bytes
from spindle_sim.workload import Workload

__all__ = [
    "Choice",
    "choose",
    "degrees",
    "joint_optimum_s",
    "level_optima_s",
    "task_groups",
]

# A model whose states take less of a device than this is trained without tensor parallelism and
# with whole optimizer states on each device, as it would be by hand.
SMALL_STATES = 0.35
# States may take this much of a device: the rest is for activations.
LARGEST_STATES = 0.8
# Activations are never spread quite evenly over the devices.
BALANCE = 0.9
# Modules whose states take less of a device than this gain nothing from tensor parallelism.
SMALL_MODULE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings with the optimum that they leave; `misfit` where even all recomputed is too much."""

    settings: Settings
    optimum_s: float
    misfit: bool = False


def degrees(
    workload: Workload, graph: MetaGraph, cluster: Cluster, *, zero1: bool | None = None
) -> Iterator[Settings]:
    """Give tensor-parallel degrees and ZeRO-1 worth considering, the least intrusive first.

    `zero1` says that ZeRO-1 must be on or off; without it both are considered.
    """
    whole = Settings(tp=tuple((module.name, 1) for module in workload.modules), zero1=bool(zero1))
    if _states(graph, cluster, whole) <= SMALL_STATES * cluster.usable_memory_bytes:
        yield whole
        return
    fitting = False
    for tp in (1, 2, 4, 8):
        if tp > cluster.island_size or cluster.island_size % tp:
            continue
        for sharded in (False, True) if zero1 is None else (zero1,):
            settings = replace(whole, tp=_degrees(workload, graph, cluster, tp), zero1=sharded)
            if _states(graph, cluster, settings) <= LARGEST_STATES * cluster.usable_memory_bytes:
                fitting = True
                yield settings
    if not fitting:  # a device can't hold the whole model: placement has to spread it
        largest = max(tp for tp in (1, 2, 4, 8) if cluster.island_size % tp == 0)
        divided = _degrees(workload, graph, cluster, largest)
        yield replace(whole, tp=divided, zero1=zero1 is not False)


def choose(context: Context, options: Sequence[tuple[tuple[str, ...], ...]]) -> list[Choice]:
    """Give these ways to form rounds, each with what it has to recompute to fit, best first.

    Of ways that leave about the same optimum, the one with fewer rounds comes first.
    """
    choices = []
    for rounds in options:
        recompute = _recompute(context, rounds)
        settings = replace(context.settings, rounds=rounds, recompute=recompute or {})
        tried = replace(context, settings=settings)
        optimum_s = sum(sum(level_optima_s(tried, tasks)) for tasks in rounds)
        if recompute is None:  # over capacity even so: kept only if nothing else is left
            optimum_s *= 1e3
        choices.append(Choice(settings=settings, optimum_s=optimum_s, misfit=recompute is None))
    return sorted(choices, key=lambda one: one.optimum_s * (1 + 1e-3 * len(one.settings.rounds)))


def level_optima_s(context: Context, tasks: Sequence[str]) -> list[float]:
    """Give C* of each MetaLevel for these tasks alone (Theorem 1)."""
    chosen = set(tasks)
    levels: dict[int, list[Malleable]] = {}
    names = context.graph.nodes if len(tasks) > 1 else context.metaops_of(tasks[0])
    for name in names:
        metaop = context.graph.nodes[name].metaop
        if metaop.task in chosen:
            levels.setdefault(metaop.level, []).append(context.malleable(name))
    return [optimum(levels[level], context.cluster.num_devices) for level in sorted(levels)]


def joint_optimum_s(context: Context) -> float:
    """Give the Theorem 1 optimum of all tasks together, over MetaLevels and micro-batches."""
    tasks = [task.name for task in context.workload.tasks]
    return context.micro_batches * sum(level_optima_s(context, tasks))


def task_groups(context: Context, count: int) -> tuple[tuple[str, ...], ...]:
    """Give at most `count` groups of tasks that keep about as many activations each."""
    kept = {
        task.name: sum(kept_bytes(context.graph.nodes[m]) for m in context.metaops_of(task.name))
        for task in context.workload.tasks
    }
    groups: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for task in sorted(kept, key=lambda name: -kept[name]):
        lightest = loads.index(min(loads))
        groups[lightest].append(task)
        loads[lightest] += kept[task]
    order = list(kept)
    found = [tuple(sorted(group, key=order.index)) for group in groups if group]
    return tuple(sorted(found, key=lambda group: order.index(group[0])))


def _recompute(context: Context, rounds: Sequence[Sequence[str]]) -> dict[str, int] | None:
    """Give what must be recomputed for the activations of each round to fit; None: not even all."""
    cluster = context.cluster
    free = cluster.usable_memory_bytes - _states(context.graph, cluster, context.settings)
    capacity = BALANCE * cluster.num_devices * free
    chosen: dict[str, int] = {}
    for tasks in rounds:
        names = [m for task in tasks for m in context.metaops_of(task)]
        short = sum(kept_bytes(context.graph.nodes[m]) for m in names) - capacity
        more = free_on_cluster(context, names, short) if short > 0 else {}
        if more is None:
            return None
        chosen |= more
    return chosen


def _states(graph: MetaGraph, cluster: Cluster, settings: Settings) -> float:
    """Give the bytes of states on a device that holds every module."""
    tp = dict(settings.tp)
    seen: dict[str, float] = {}
    for node in graph.nodes.values():
        metaop = node.metaop
        degree = tp[metaop.module]
        group = max(1, cluster.num_devices // degree) if settings.zero1 else 1
        seen[metaop.parameter_set] = metaop.num_ops * state_bytes(
            metaop, tp=degree, optimizer_shards=group
        )
    return sum(seen.values())


def _degrees(
    workload: Workload, graph: MetaGraph, cluster: Cluster, tp: int
) -> tuple[tuple[str, int], ...]:
    """Give the degree to modules that are large enough and can be divided by it."""
    large = SMALL_MODULE * cluster.usable_memory_bytes
    divisible: dict[str, bool] = {}
    for node in graph.nodes.values():
        heads = getattr(node.operator.operator, "heads", tp)
        divides = heads % tp == 0 and not getattr(node.operator.operator, "whole", False)
        divisible[node.metaop.module] = divisible.get(node.metaop.module, True) and divides
    return tuple(
        (module.name, tp if 16 * module.parameters > large and divisible.get(module.name) else 1)
        for module in workload.modules
    )
