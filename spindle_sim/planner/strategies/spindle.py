"""Spindle (section 3): allocation and stages for all tasks' operators together, level by level."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spindle_sim.planner.allocate import Malleable
from spindle_sim.planner.attach import Attachment, attach
from spindle_sim.planner.context import Context
from spindle_sim.planner.lanes import Costs, Lanes, Run
from spindle_sim.planner.levels import metalevels
from spindle_sim.planner.metagraph import DraftSlice, MetaNode
from spindle_sim.planner.moves import Moves
from spindle_sim.planner.schedule import SearchEffort, schedule_level
from spindle_sim.planner.strategies.task_level import size_near_data

__all__ = ["merge_rounds", "spindle"]

# Above this many MetaOps x devices the search keeps fewer partial schedules, so that planning time
# stays in seconds.
LARGE_LEVEL = 4096
SMALL_LEVEL = 8  # MetaOps
TINY_LEVEL = 5

# Merged schedules that are placed, to see which communicates least.
KEPT = 4
# Half of those kept are chosen as if each slice made the schedule so much longer: what slices cost
# shows only in placement, and in the backward, whose times are not quite the forward's.
PER_RUN = 0.005
# Staying on more devices than it takes is offered where it is this little slower at most. It counts
# as this little faster, so that times fall strictly.
FLAT = 1e-3
TIE = 1e-6
# Small levels are searched a second time with moving data so many times dearer.
STEADY = 30.0

# Stage among the heavy MetaOps; before, within or after it; how far; place among those.
Key = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The levels scheduled so far, one after the other, and how they play out."""

    lanes: Lanes
    runs: tuple[Run, ...]

    @property
    def signature(self) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
        """What makes schedules alike: each MetaOp's allocations in order, and operators on each."""
        parts: dict[str, list[tuple[int, int]]] = {}
        for run in self.runs:
            own = parts.setdefault(run.id, [])
            if own and own[-1][0] == run.num_devices:
                own[-1] = run.num_devices, own[-1][1] + run.num_ops
            else:
                own.append((run.num_devices, run.num_ops))
        return tuple((name, tuple(own)) for name, own in parts.items())

    def then(self, level: Sequence[Run], costs: Costs) -> "Merged":
        """Add a level's schedule."""
        stage = 1 + max((run.stage for run in self.runs), default=-1)
        later = tuple(replace(run, stage=run.stage + stage) for run in level)
        return Merged(lanes=self.lanes.after(later, costs), runs=self.runs + later)


def spindle(context: Context) -> Sequence[tuple[DraftSlice, ...]]:
    """Plan all tasks of a round jointly; there is one round unless the memory asks for more."""
    rounds = context.settings.rounds or (tuple(t.name for t in context.workload.tasks),)
    return merge_rounds(context, rounds)


def merge_rounds(context: Context, rounds: Sequence[Sequence[str]]) -> list[tuple[DraftSlice, ...]]:
    """Plan the tasks of each round jointly; alternatives differ in every round that has any."""
    alternatives = [
        merge_levels(context, tasks, round_index=index) for index, tasks in enumerate(rounds)
    ]
    count = max(len(found) for found in alternatives)
    return [
        tuple(draft for found in alternatives for draft in found[min(place, len(found) - 1)])
        for place in range(count)
    ]


def merge_levels(
    context: Context, tasks: Sequence[str], *, round_index: int
) -> list[tuple[DraftSlice, ...]]:
    """Schedule each MetaLevel of these tasks and merge them one after the other (section 3.4).

    The few best merged schedules are kept, as they play out without barriers between levels.
    """
    chosen = set(tasks)
    attached = attach(context)
    before = {
        name: _heavy_before(context, node, attached)
        for name, node in context.graph.nodes.items()
        if name not in attached and node.metaop.task in chosen
    }
    light = {m: a for m, a in attached.items() if context.graph.nodes[m].metaop.task in chosen}
    beside = _beside(light)
    steady = Merged(lanes=Lanes.idle(context.cluster.num_devices), runs=())
    kept = [steady]
    for level in _levels(before):
        metaops = [_burdened(context, name, beside) for name in level]
        kept, steady = _schedule(context, metaops, kept, steady, before)
    drafts = []
    for merged in {one.signature: one for one in (*kept, steady)}.values():
        heavy = _heavy_drafts(context, merged.runs, round_index)
        lighter = _light_drafts(context, light, [draft for _, draft in heavy], round_index)
        drafts.append(_numbered([*heavy, *lighter]))
    return [*drafts, _plainest(context, chosen, round_index)]


def _plainest(context: Context, tasks: set[str], round_index: int) -> tuple[DraftSlice, ...]:
    """Give candidate sets of one MetaOp each, all on as many devices: next to nothing moves.

    Where a network is slow beside what it has to carry, no division of the devices pays.
    """
    names = [m for m, node in context.graph.nodes.items() if node.metaop.task in tasks]
    names.sort(key=lambda m: context.graph.nodes[m].metaop.level)
    return tuple(
        context.draft(
            name,
            num_devices=size_near_data(context, name, context.cluster.num_devices),
            stage=stage,
            round_index=round_index,
        )
        for stage, name in enumerate(names)
    )


def _levels(before: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """Give the MetaLevels among the heavy MetaOps: a light one makes no level of its own."""
    depths = metalevels(before)
    levels: list[list[str]] = [[] for _ in range(1 + max(depths.values()))]
    for name, depth in depths.items():
        levels[depth].append(name)
    return levels


def _schedule(
    context: Context,
    metaops: Sequence[Malleable],
    kept: Sequence[Merged],
    steady: Merged,
    before: Mapping[str, tuple[str, ...]],
) -> tuple[list[Merged], Merged]:
    """Add a level to the merged schedules kept so far; keep those that play out best.

    `steady` is the one that moves least data from level to level, however it plays out.
    """
    homes = [one.lanes.homes(before) for one in (kept[0], steady)]
    metaops = [
        _offered(context, metaop, {home.get(metaop.id, 0) for home in homes}) for metaop in metaops
    ]
    costs = _costs(context, metaops, before)
    free = _candidates(context, metaops, kept[0], costs)
    small = len(metaops) <= SMALL_LEVEL
    dear = costs.weighed(STEADY)
    staying = _candidates(context, metaops, steady, dear, width=1) if small else free[:1]
    least_moved = min(staying, key=lambda runs: steady.then(runs, dear).lanes.makespan_s)
    merged = [earlier.then(runs, costs) for earlier in kept for runs in (*free, *staying)]
    merged.sort(key=lambda one: (one.lanes.makespan_s, len(one.runs)))
    if context.cluster.num_devices * len(before) > LARGE_LEVEL:
        return merged[:1], merged[0]
    fewest = sorted(merged, key=lambda one: one.lanes.makespan_s * (1 + PER_RUN * len(one.runs)))
    kept_now: dict[object, Merged] = {}
    for pair in zip(merged, fewest, strict=True):
        for one in pair:
            if len(kept_now) < (2 * KEPT if len(metaops) <= TINY_LEVEL else KEPT - 1):
                kept_now.setdefault(one.signature, one)
    return list(kept_now.values()), steady.then(least_moved, costs)


def _costs(
    context: Context, metaops: Sequence[Malleable], before: Mapping[str, tuple[str, ...]]
) -> Costs:
    return Costs(
        times_s={m.id: dict(zip(m.allocations, m.times_s, strict=True)) for m in metaops},
        predecessors=before,
        moves={m.id: Moves.of(context.graph.nodes[m.id], context.cluster) for m in metaops},
    )


def _candidates(
    context: Context,
    metaops: Sequence[Malleable],
    earlier: Merged,
    costs: Costs,
    *,
    width: int | None = None,
) -> list[tuple[Run, ...]]:
    """Give the best schedules found for the level after `earlier`.

    Levels that differ in the names of their MetaOps alone are searched once.
    """
    effort = _effort(len(metaops), context.cluster.num_devices)
    effort = effort if width is None else replace(effort, width=width)
    nameless = tuple(replace(metaop, id=str(place)) for place, metaop in enumerate(metaops))
    moves = tuple(costs.moves[metaop.id] for metaop in metaops)
    home = tuple(len(earlier.lanes.home(metaop.id, costs.predecessors)) for metaop in metaops)
    key = nameless, moves, home, effort
    if key not in context.schedules:
        context.schedules[key] = schedule_level(
            nameless,
            context.cluster.num_devices,
            moves=moves,
            home=home,
            effort=effort,
            rng=np.random.default_rng(context.seed),
        )
    names = [metaop.id for metaop in metaops]
    return [
        tuple(replace(run, id=names[int(run.id)]) for run in runs)
        for runs in context.schedules[key]
    ]


def _offered(context: Context, metaop: Malleable, homes: set[int]) -> Malleable:
    """Offer a MetaOp the devices that hold its input too, where it is about as fast on them.

    An allocation that is no faster than a smaller one is left out otherwise.
    """
    curve = context.curve(metaop.id)
    largest = metaop.allocations[-1]
    wider = sorted(n for n in homes if n > largest and n in curve.allocations)
    flat = [n for n in wider if curve.time_s(n) <= curve.time_s(largest) * (1 + FLAT)]
    last_s = metaop.times_s[-1]
    return replace(
        metaop,
        allocations=(*metaop.allocations, *flat),
        times_s=(*metaop.times_s, *(last_s * (1 - TIE * (i + 1)) for i in range(len(flat)))),
    )


def _beside(light: Mapping[str, Attachment]) -> dict[str, list[str]]:
    """Give the light MetaOps by the host whose time they add to."""
    beside: dict[str, list[str]] = {}
    for name, attachment in light.items():
        beside.setdefault(attachment.hosts[0], []).append(name)
    return beside


def _burdened(context: Context, name: str, beside: Mapping[str, Sequence[str]]) -> Malleable:
    """Give a heavy MetaOp with the time of its light ones spread over its operators."""
    num_ops = context.graph.nodes[name].metaop.num_ops
    times = dict(context.times_s(name))
    for light in beside.get(name, ()):
        curve = context.curve(light)
        for n in times:
            size = max((a for a in curve.allocations if a <= n), default=curve.allocations[0])
            count = context.graph.nodes[light].metaop.num_ops
            times[n] += count * curve.time_s(size) / num_ops
    useful: dict[int, float] = {}
    for n, time_s in times.items():
        if time_s < min(useful.values(), default=float("inf")) * (1 - TIE):
            useful[n] = time_s
    return Malleable(
        id=name,
        num_ops=num_ops,
        allocations=tuple(useful),
        times_s=tuple(useful.values()),
    )


def _heavy_before(
    context: Context, node: MetaNode, attached: Mapping[str, Attachment]
) -> tuple[str, ...]:
    """Give the heavy MetaOps whose output a MetaOp gets, directly or through light ones."""
    found: dict[str, None] = {}
    waiting = list(node.metaop.predecessors)
    while waiting:
        name = waiting.pop()
        if name in attached:
            waiting += context.graph.nodes[name].metaop.predecessors
        else:
            found[name] = None
    return tuple(found)


def _effort(num_metaops: int, num_devices: int) -> SearchEffort:
    """Search small levels, which are cheap and leave least room to balance, most widely."""
    if num_metaops * num_devices > LARGE_LEVEL:
        return SearchEffort(num_buckets=16, width=1, num_perturbed=1, num_spans=4, num_results=3)
    if num_metaops <= TINY_LEVEL:
        return SearchEffort(num_buckets=16, width=4, num_perturbed=4, num_spans=6, num_results=24)
    if num_metaops <= SMALL_LEVEL:
        return SearchEffort(num_buckets=16, num_perturbed=3, num_spans=6)
    return SearchEffort(num_buckets=16)


def _heavy_drafts(
    context: Context, runs: Sequence[Run], round_index: int
) -> list[tuple[Key, DraftSlice]]:
    begun: dict[str, int] = {}
    drafts = []
    for run in runs:
        first = begun.get(run.id, 0)
        begun[run.id] = first + run.num_ops
        draft = context.draft(
            run.id,
            num_devices=run.num_devices,
            stage=run.stage,
            round_index=round_index,
            first_op=first,
            num_ops=run.num_ops,
        )
        drafts.append(((run.stage, 0, 0, 0), draft))
    return drafts


def _light_drafts(
    context: Context,
    light: Mapping[str, Attachment],
    heavy: Iterable[DraftSlice],
    round_index: int,
) -> list[tuple[Key, DraftSlice]]:
    """Give each light MetaOp its host's number of devices, next to it in time.

    It follows the host that ends last, whose devices no other host of that stage has; or it comes
    before the first slice of the one that begins first.
    """
    first: dict[str, DraftSlice] = {}
    last: dict[str, DraftSlice] = {}
    hosts: dict[tuple[int, int, int], list[dict[str, int]]] = {}
    for draft in heavy:
        first.setdefault(draft.metaop, draft)
        last[draft.metaop] = draft
    drafts: list[tuple[Key, DraftSlice]] = []
    for metaop, attachment in light.items():
        if attachment.follows:
            host = max((last[name] for name in attachment.hosts), key=lambda d: d.stage)
            near = host.stage, 1, attachment.hops
        else:
            host = min((first[name] for name in attachment.hosts), key=lambda d: d.stage)
            near = host.stage, -1, -attachment.hops
        valid = [n for n in context.curve(metaop).allocations if n <= host.num_devices]
        size = max(valid, default=min(context.curve(metaop).allocations))
        draft = context.draft(metaop, num_devices=size, stage=host.stage, round_index=round_index)
        taken = hosts.setdefault(near, [])
        # Those of one host come one after the other; no more run side by side than devices allow.
        place = 0
        while place < len(taken) and (
            host.metaop in taken[place]
            or sum(taken[place].values()) + size > context.cluster.num_devices
        ):
            place += 1
        if place == len(taken):
            taken.append({})
        taken[place][host.metaop] = size
        drafts.append(((*near, place), draft))
    return drafts


def _numbered(drafts: Sequence[tuple[Key, DraftSlice]]) -> tuple[DraftSlice, ...]:
    """Number the stages in the order of their keys."""
    order = {key: stage for stage, key in enumerate(sorted({key for key, _ in drafts}))}
    placed = [replace(draft, stage=order[key]) for key, draft in drafts]
    return tuple(sorted(placed, key=lambda draft: draft.stage))
