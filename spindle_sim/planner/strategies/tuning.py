"""The search of `megatron` and `deepspeed`: a parallel configuration for each task.

Every configuration of a task is looked at; those are played through that no other one beats in time
and memory alike. Tasks are then tuned in turns, since they share parameters (one tensor-parallel
degree, one synchronization) and memory: from every common depth of pipelines on, until no task gets
better by itself, then moved before or after one another. With one task that is exhaustive.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import ceil, inf, prod

from spindle_sim.errors import InfeasibleError
from spindle_sim.plan import Plan
from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import MetaNode
from spindle_sim.planner.shortage import devices_needed
from spindle_sim.planner.strategies.judge import Judge, Option, Verdict
from spindle_sim.planner.strategies.options import Options
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, configured_plan
from spindle_sim.planner.strategies.rounds import TaskRounds
from spindle_sim.planner.strategies.space import Space, tensor_degrees
from spindle_sim.planner.strategies.timing import OperatorTimes
from spindle_sim.planner.strategies.trials import MARGIN, Trial, fastest
from spindle_sim.simulator.links import cluster_links
from spindle_sim.units import format_bytes

__all__ = ["Tuned", "tune", "tuned_plan"]

_GIB = 2.0**30
# Tasks that share no modules may differ in their degrees; of more combinations than these only
# those are tried in which all have the same, as far as they can.
_MOST_DEGREES = 64
# Tasks stay in the order of the workload unless another one saves more than this part.
_SLIGHT = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Configurations of all tasks under a ZeRO stage, and what they come to."""

    configs: Mapping[str, ParallelConfig]
    zero_stage: int
    verdict: Verdict


def tuned_plan(context: Context, space: Space, *, strategy: str) -> Plan:
    """Give the plan of the best configurations in a space.

    Raises:
        InfeasibleError: none fits the memory.
    """
    best = tune(context, space)[0]
    return configured_plan(
        context,
        best.configs,
        zero_stage=best.zero_stage,
        overlap_sync=True,
        strategy=strategy,
    )


def tune(context: Context, space: Space) -> tuple[Tuned, ...]:
    """Give the best configurations found, the best first, of all ZeRO stages of the space.

    Raises:
        InfeasibleError: none fits the memory.
    """
    search = _search(context, space)
    # A narrow search first: nothing that computes longer than what it finds can be better.
    narrow = {
        stage: _ordered(search, _best(search, stage, search.narrow), stage)
        for stage in space.searched_stages
    }
    known = [one for stage, found in narrow.items() for one in _tuned(*found, stage)]
    limit_s = min((one.verdict.seconds for one in known), default=inf)
    wide = search.narrow.widened(limit_s)
    best = {
        stage: _ordered(own, _best(own, stage, wide, options), stage)
        for stage, (own, options) in narrow.items()
    }
    fitting = [one for stage, found in best.items() for one in _tuned(*found, stage)]
    if not fitting:
        raise _infeasible(search, {stage: options for stage, (_, options) in best.items()})
    ranked = sorted(fitting, key=_rank_of)
    return _tried(search, ranked, wide, tuple(own for own, _ in best.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What is searched, and who judges. `tasks` are in the order in which they are trained."""

    context: Context
    space: Space
    judge: Judge
    tasks: tuple[str, ...]
    components: tuple[tuple[str, ...], ...]
    narrow: Options


def _tuned(search: _Search, options: Sequence[Option], zero_stage: int) -> Iterator[Tuned]:
    """Give the configurations of options under a ZeRO stage, and those that it stands for."""
    for stage in search.space.standing_for(zero_stage):
        if search.judge.short_bytes(options, stage):
            continue
        refined = _refined(search, options, stage)
        yield Tuned(
            configs={t: o.sketch.config for t, o in zip(search.tasks, refined, strict=True)},
            zero_stage=stage,
            verdict=search.judge.verdict(refined, stage),
        )


def _tried(
    search: _Search, ranked: Sequence[Tuned], options: Options, orders: Sequence[_Search]
) -> tuple[Tuned, ...]:
    """Put first what is simulated fastest, of all that is judged nearly as fast as the best."""
    best = ranked[0]
    limit_s = best.verdict.seconds * (1 + MARGIN)
    for stage, own in zip(search.space.searched_stages, orders, strict=True):
        _look_around(own, best, options, stage)
    # As they are refined, which those that were ranked aren't.
    first, *trials = [
        Trial(
            options=tuple(search.narrow.made(task, config) for task, config in one.configs.items()),
            zero_stage=one.zero_stage,
            seconds=one.verdict.seconds,
        )
        for one in ranked
        if one is best or one.zero_stage in search.space.searched_stages
    ]
    trials += [
        Trial(options=found, zero_stage=stage, seconds=seconds)
        for stage, found, seconds in search.judge.known(limit_s)
    ]
    times = search.narrow.rounds[search.tasks[0]].times

    def plan_of(trial: Trial) -> Plan:
        return configured_plan(
            search.context,
            trial.configs,
            zero_stage=trial.zero_stage,
            overlap_sync=True,
            strategy="trial",
            times=times,
        )

    won = fastest(first, trials, plan_of)
    for index, one in enumerate(ranked):
        known = one.zero_stage, list(one.configs.items())
        if known == (won.zero_stage, list(won.configs.items())):
            return (one, *ranked[:index], *ranked[index + 1 :])
    found = _tuned(replace(search, tasks=tuple(won.configs)), won.options, won.zero_stage)
    return (*sorted(found, key=_rank_of), *ranked)


def _rank_of(one: Tuned) -> tuple[float, int]:
    return one.verdict.seconds, one.zero_stage


def _look_around(search: _Search, best: Tuned, options: Options, zero_stage: int) -> None:
    """Rank what differs in one task from the best, so that the nearly equal are known."""
    limit_s = best.verdict.seconds * (1 + MARGIN)
    current = [options.made(task, best.configs[task]) for task in search.tasks]
    for index, task in enumerate(search.tasks):
        others_s = sum(o.round_s for o in current) - current[index].round_s
        degrees = {current[index].sketch.config.tp}
        if len(search.tasks) == 1:
            degrees |= {tp[task] for tp in _degrees(search)}
        for option in (o for tp in sorted(degrees) for o in options.of(task, tp)):
            least_s = others_s + option.round_s + search.judge.least_step_s(option, zero_stage)
            if least_s <= limit_s:
                tried = [*current[:index], option, *current[index + 1 :]]
                search.judge.rank(tried, zero_stage)


def _ordered(
    search: _Search, options: Sequence[Option], zero_stage: int
) -> tuple[_Search, Sequence[Option]]:
    """Move tasks while that ends the iteration sooner; give the search with their order.

    Parameters synchronize after the last task that uses them, beside those that don't.
    """
    tasks, current = search.tasks, list(options)
    best = search.judge.rank(current, zero_stage)
    improved = True
    while improved:
        improved = False
        for source, target in permutations(range(len(tasks)), 2):
            moved = [*current[:source], *current[source + 1 :]]
            moved.insert(target, current[source])
            rank = search.judge.rank(moved, zero_stage)
            if rank[1] < best[1] * (1 - _SLIGHT):
                names = [*tasks[:source], *tasks[source + 1 :]]
                names.insert(target, tasks[source])
                best, current, tasks, improved = rank, moved, tuple(names), True
    return replace(search, tasks=tasks), current


def _refined(search: _Search, options: Sequence[Option], zero_stage: int) -> Sequence[Option]:
    """Recompute no more layers of a stage than memory asks for, task by task."""
    for index, task in enumerate(search.tasks):
        config = options[index].sketch.config
        if config.recompute is not Recompute.FULL:
            continue
        low, high = (
            0,
            config.recompute_ops or sum(p.num_ops for s in options[index].sketch.stages for p in s),
        )
        while low < high:
            middle = (low + high) // 2
            fewer = search.narrow.made(task, replace(config, recompute_ops=middle))
            tried = [*options[:index], fewer, *options[index + 1 :]]
            if search.judge.short_bytes(tried, zero_stage):
                low = middle + 1
            else:
                high, options = middle, tried
    return options


def _search(context: Context, space: Space) -> _Search:
    times = OperatorTimes(estimator=context.estimator)
    links = cluster_links(context.cluster)
    tasks = tuple(task.name for task in context.workload.tasks)
    rounds = {
        task: TaskRounds(nodes=_nodes(context, task), times=times, links=links) for task in tasks
    }
    return _Search(
        context=context,
        space=space,
        judge=Judge(
            cluster=context.cluster,
            estimator=context.estimator,
            links=links,
            metaops={n.metaop.parameter_set: n.metaop for n in context.graph.nodes.values()},
        ),
        tasks=tasks,
        components=_components(context, tasks),
        narrow=Options(cluster=context.cluster, space=space, rounds=rounds, narrow=True),
    )


def _best(
    search: _Search, zero_stage: int, options: Options, known: Sequence[Option] | None = None
) -> Sequence[Option]:
    """Give the best options of all tasks under a ZeRO stage, or those that lack least memory."""
    best: tuple[tuple[float, float], Sequence[Option]] | None = None
    if known is not None:
        best = search.judge.rank(known, zero_stage), known
    for tp in _degrees(search):
        starts = _starts(search, tp, options)
        if known is not None and all(
            o.sketch.config.tp == tp[t] for t, o in zip(search.tasks, known, strict=True)
        ):
            starts = [known, *starts]
        for start in starts:
            if best and best[0][0] == 0 and sum(o.round_s for o in start) >= best[0][1]:
                continue  # computes longer than the best one takes in all
            tried = _descend(search, start, {t: options.of(t, tp[t]) for t in tp}, zero_stage)
            if best is None or tried[0] < best[0]:
                best = tried
    assert best is not None, "every task has a configuration"
    return best[1]


def _degrees(search: _Search) -> Iterator[dict[str, int]]:
    """Give the tensor-parallel degrees of all tasks: one for those that share modules."""
    rounds = search.narrow.rounds
    degrees = [
        tensor_degrees(
            [node for task in component for node in rounds[task].nodes],
            search.context.cluster,
            search.space,
        )
        for component in search.components
    ]
    chosen: Iterable[tuple[int, ...]] = product(*degrees)
    if prod(map(len, degrees)) > _MOST_DEGREES:
        common = sorted({degree for own in degrees for degree in own})
        chosen = [tuple(max(d for d in own if d <= degree) for own in degrees) for degree in common]
    for one in chosen:
        yield {t: d for members, d in zip(search.components, one, strict=True) for t in members}


def _starts(search: _Search, tp: Mapping[str, int], options: Options) -> list[Sequence[Option]]:
    """Give each task's fastest option for each depth of pipelines and number of devices.

    As far as a task has one: tasks that share parameters change both together, or gain nothing.
    """
    by_task = {task: options.of(task, tp[task]) for task in search.tasks}
    if not all(by_task.values()):
        return []
    configs = {option.sketch.config for own in by_task.values() for option in own}
    starts: list[Sequence[Option]] = []
    for pp, limit in sorted({(config.pp, config.num_devices) for config in configs}):
        start = []
        for task in search.tasks:
            own = [option for option in by_task[task] if option.sketch.config.pp == pp]
            few = [option for option in own if option.sketch.config.num_devices <= limit]
            start.append(min(few or own or by_task[task], key=lambda option: option.round_s))
        starts.append(start)
    return sorted(starts, key=lambda start: sum(option.round_s for option in start))


def _descend(
    search: _Search,
    start: Sequence[Option],
    options: Mapping[str, Sequence[Option]],
    zero_stage: int,
) -> tuple[tuple[float, float], Sequence[Option]]:
    """Change one task at a time for the better until none gets better; memory comes first."""
    current = list(start)
    best = search.judge.rank(current, zero_stage)
    improved = True
    while improved:
        improved = False
        for index, task in enumerate(search.tasks):
            others_s = sum(o.round_s for o in current) - current[index].round_s
            for option in options[task]:
                if best[0] == 0 and others_s + option.round_s >= best[1]:
                    break  # they come by time: none behind is better
                tried = [*current[:index], option, *current[index + 1 :]]
                least_s = others_s + option.round_s + search.judge.least_step_s(option, zero_stage)
                if best[0] == 0 and least_s >= best[1]:
                    continue
                if search.judge.short_bytes(tried, zero_stage) > best[0]:
                    continue
                rank = search.judge.rank(tried, zero_stage)
                if rank < best:
                    best, current, improved = rank, tried, True
    return best, current


def _components(context: Context, tasks: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Give the tasks in groups that share modules, directly or through others."""
    modules = {t: {n.metaop.module for n in _nodes(context, t)} for t in tasks}
    groups: list[tuple[list[str], set[str]]] = []
    for task in tasks:
        joined, used = [task], set(modules[task])
        rest = []
        for members, theirs in groups:
            if theirs & used:
                joined, used = [*members, *joined], used | theirs
            else:
                rest.append((members, theirs))
        groups = [*rest, (joined, used)]
    return tuple(tuple(members) for members, _ in groups)


def _nodes(context: Context, task: str) -> tuple[MetaNode, ...]:
    return tuple(context.graph.nodes[name] for name in context.metaops_of(task))


def _infeasible(search: _Search, best: Mapping[int, Sequence[Option]]) -> InfeasibleError:
    """Say what is short under the configurations that lack least, and what would help."""
    short_bytes, stage = min(
        (search.judge.short_bytes(options, stage), stage) for stage, options in best.items()
    )
    options = best[stage]
    context, space = search.context, search.space
    usable = context.cluster.usable_memory_bytes
    tried = [f"ZeRO stages {', '.join(map(str, space.zero_stages))}", "micro-batches of any size"]
    tried += ["tensor and pipeline parallelism"] if space.pipeline else []
    configs = {f"{c.tp} x {c.pp} x {c.dp}" for c in (option.sketch.config for option in options)}
    num_devices = devices_needed(context)
    needed_bytes = (usable + short_bytes) / context.cluster.usable_memory_fraction
    help_ = "a GPU with at least" + f" {ceil(needed_bytes / _GIB)} GiB"
    if num_devices is not None:
        help_ = f"more devices: at least about {num_devices} of this kind; {help_}"
    return InfeasibleError(
        f"the fullest device is {format_bytes(short_bytes)} short: it would hold"
        f" {format_bytes(usable + short_bytes)}, a plan may use {format_bytes(usable)} of its"
        f" {format_bytes(context.cluster.gpu.memory_bytes)}. That is with the configuration that"
        f" needs least (tensor x pipeline x data parallelism {', '.join(sorted(configs))}); tried:"
        f" {', '.join(tried)}, full recomputation. What would help: {help_}"
    )
