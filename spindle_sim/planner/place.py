"""Device placement (section 3.5): which devices run each draft, stage by stage, greedily.

Where a device's memory is short, a stage is placed anew by memory first; where that isn't enough,
so are ever more of the stages before it (backtracking), at last all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.planner.affinity import Group
from spindle_sim.planner.board import Board, Cost
from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import OutOfMemoryError
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.select import select
from spindle_sim.planner.shortage import shortage

__all__ = ["NoRoomError", "place"]

Bools = npt.NDArray[np.bool_]

MAX_STEPS_BACK = 64
# A stage of at most so many slices is placed in several orders, of which the best is kept.
SMALL_STAGE = 12
# Other orders aren't tried where the first loses less than this share of the slices' time.
LITTLE = 0.005


class NoRoomError(InfeasibleError):
    """The slices of a stage fit the devices by number, but their tensor-parallel groups don't."""


def place(
    context: Context,
    drafts: Sequence[DraftSlice],
    *,
    method: str = "spindle",
    sync_weight: float = 1.0,
) -> tuple[tuple[int, ...], ...]:
    """Give the devices of each draft, ordered: position d * tp + t is rank t of replica d.

    `method` is "spindle" or, to compare with, "sequential": consecutive devices for each MetaOp
    (section 5.5.2). A draft that has devices keeps them. Greed can't know what a group costs later:
    a larger `sync_weight` keeps shared parameters in fewer islands at the price of transfers.

    Raises:
        OutOfMemoryError: a device can't hold what is placed on it.
        NoRoomError: too few aligned groups of devices are free for a slice of a stage.
        InfeasibleError: a tensor-parallel group would span device islands.
    """
    # One micro-batch is placed: it bears its part of the one synchronization.
    board = Board(context, drafts, sync_weight / context.micro_batches)
    stages = list(_stages(drafts))
    for stage in stages:
        _assert_enough([drafts[index] for index in stage], context.cluster)
    given = all(draft.devices is not None for draft in drafts)
    if given or method == "sequential":
        for stage in stages:
            _place_sequentially(board, stage)
    else:
        _place_with_backtracking(board, stages)
    return tuple(board.groups[index].devices for index in range(len(drafts)))


def _stages(drafts: Sequence[DraftSlice]) -> Iterator[list[int]]:
    order = sorted(range(len(drafts)), key=lambda i: (drafts[i].round, drafts[i].stage))
    for _, members in groupby(order, key=lambda i: (drafts[i].round, drafts[i].stage)):
        yield list(members)


def _place_sequentially(board: Board, stage: Sequence[int]) -> None:
    free = np.ones(board.context.cluster.num_devices, dtype=bool)
    # Widest tensor-parallel groups first: what is left then begins where the others may.
    depth = _depths(board, stage)
    order = sorted(stage, key=lambda i: (depth[i], -board.drafts[i].tp))
    for index in stage:
        free[list(board.drafts[index].devices or ())] = False
    for position, index in enumerate(order):
        draft = board.drafts[index]
        devices = draft.devices
        if devices is None:
            wider = _wider(board, index, order[position + 1 :])
            left = _without_room_for(wider, free)
            units = _units(draft, free if left is None else left)
            firsts = units[: draft.num_devices // draft.tp] * draft.tp
            if len(firsts) * draft.tp < draft.num_devices:
                raise _no_room(draft)
            devices = tuple(int(first) + rank for first in firsts for rank in range(draft.tp))
        _check(draft, devices, board.context.cluster)
        board.put(index, Group(devices, draft.tp))
        free[list(devices)] = False
        if not _fits(board, board.groups[index]):
            raise _worst(board, devices)


def _place_with_backtracking(board: Board, stages: Sequence[Sequence[int]]) -> None:
    memory_first = [False] * len(stages)
    depth = [0] * len(stages)  # how far a stage has sent us back so far
    steps = 0
    current = 0
    while current < len(stages):
        if _place_stage(board, stages[current], memory_first=memory_first[current]):
            current += 1
            continue
        if not memory_first[current]:
            memory_first[current] = True
            continue
        steps += 1
        depth[current] = max(1, 2 * depth[current]) if steps < MAX_STEPS_BACK else current
        target = max(0, current - depth[current])
        if all(memory_first[target:current]) and target == 0:
            refused = _last_resort(board, stages[current])
            if refused is not None:
                raise refused
            current += 1
            continue
        for stage in reversed(stages[target:current]):
            for _ in stage:
                board.take_back()
        memory_first[target:current] = [True] * (current - target)
        current = target


def _place_stage(board: Board, stage: Sequence[int], *, memory_first: bool) -> bool:
    """Place a stage in the best of a few orders; leaves nothing placed where none works."""
    best: tuple[float, list[tuple[int, Group]]] | None = None
    orders = _orders(board, stage, memory_first=memory_first)
    for order in orders:
        costs = _try(board, order, memory_first=memory_first)
        if costs is None:
            continue
        lost_s = sum(cost.lost_s for cost in costs)
        if len(orders) == 1 or lost_s <= LITTLE * sum(board.durations_s[index] for index in order):
            return True
        groups = [(index, board.groups[index]) for index in order]
        for _ in order:
            board.take_back()
        total_s = lost_s + sum(cost.start_s for cost in costs)
        if best is None or total_s < best[0]:
            best = total_s, groups
    if best is None:
        return False
    for index, group in best[1]:
        board.put(index, group)
    return True


def _orders(board: Board, stage: Sequence[int], *, memory_first: bool) -> list[tuple[int, ...]]:
    if memory_first:
        return [_by_memory(board, stage)]
    by_volume = _by_volume(board, stage)
    if not 1 < len(stage) <= SMALL_STAGE:
        return [by_volume]
    depth, drafts = _depths(board, stage), board.drafts
    widest = sorted(by_volume, key=lambda i: (depth[i], -drafts[i].num_devices))
    staying = sorted(by_volume, key=lambda i: (depth[i], -drafts[i].tp, not _stays(board, i)))
    return list(dict.fromkeys([by_volume, tuple(widest), tuple(staying)]))


def _try(board: Board, order: Sequence[int], *, memory_first: bool) -> list[Cost] | None:
    """Place the drafts in this order; gives what each costs, or None with nothing placed."""
    board.begin_stage(order)
    costs: list[Cost] = []
    for position, index in enumerate(order):
        board.claim(index, -1)
        chosen = _choose(board, index, order[position + 1 :], memory_first=memory_first)
        if chosen is None:
            for _ in costs:
                board.take_back()
            return None
        group, cost = chosen
        board.put(index, group)
        board.claims.free[list(group.devices)] = False
        costs.append(cost)
    return costs


def _choose(
    board: Board, index: int, later: Sequence[int], *, memory_first: bool
) -> tuple[Group, Cost] | None:
    """Give the best group that leaves wider tensor-parallel groups of the stage their room."""
    chosen = select(board, index, memory_first=memory_first)
    wider = _wider(board, index, later)
    if chosen is None or not wider:
        return chosen
    free = board.claims.free
    after = free.copy()
    after[list(chosen[0].devices)] = False
    if _without_room_for(wider, after) is not None:
        return chosen
    left = _without_room_for(wider, free)
    if left is None:
        return chosen
    board.claims.free = left
    chosen = select(board, index, memory_first=memory_first)
    board.claims.free = free
    return chosen


def _wider(board: Board, index: int, later: Iterable[int]) -> list[DraftSlice]:
    drafts = [board.drafts[i] for i in later]
    return [d for d in drafts if d.devices is None and d.tp > board.drafts[index].tp]


def _without_room_for(drafts: Sequence[DraftSlice], free: Bools) -> Bools | None:
    """Give the free devices that are left beside groups for these drafts; None without room."""
    left = free.copy()
    for draft in sorted(drafts, key=lambda draft: -draft.tp):
        count = draft.num_devices // draft.tp
        units = _units(draft, left)[-count:]
        if len(units) < count:
            return None
        left.reshape(-1, draft.tp)[units] = False
    return left


def _units(draft: DraftSlice, free: Bools) -> npt.NDArray[np.intp]:
    return np.flatnonzero(free.reshape(-1, draft.tp).all(axis=1))


def _no_room(draft: DraftSlice) -> NoRoomError:
    return NoRoomError(
        f"{draft.metaop}: stage {draft.stage} of round {draft.round} leaves fewer than"
        f" {draft.num_devices // draft.tp} groups of {draft.tp} adjacent devices free, which its"
        f" tensor parallelism of {draft.tp} needs"
    )


def _assert_enough(stage: Sequence[DraftSlice], cluster: Cluster) -> None:
    given = {device for draft in stage for device in draft.devices or ()}
    needed = len(given) + sum(draft.num_devices for draft in stage if draft.devices is None)
    assert needed <= cluster.num_devices, (
        f"stage {stage[0].stage} of round {stage[0].round} needs {needed} devices of"
        f" {cluster.num_devices}"
    )


def _stays(board: Board, index: int) -> bool:
    if not board.sources(index) <= board.groups.keys():
        return False  # its samples come from a slice of the same stage
    source = board.main_source(index)
    return source is not None and len(source.devices) == board.drafts[index].num_devices


def _by_volume(board: Board, stage: Sequence[int]) -> tuple[int, ...]:
    """Order by bytes that the slice receives and synchronizes, wide tensor parallelism first."""

    def volume(index: int) -> float:
        draft = board.drafts[index]
        return 2 * draft.num_ops * board.gradient_bytes(draft) + sum(
            item.directions * item.size_bytes for item in board.inputs[index]
        )

    depth = _depths(board, stage)
    return tuple(sorted(stage, key=lambda i: (depth[i], -board.drafts[i].tp, -volume(i), i)))


def _by_memory(board: Board, stage: Sequence[int]) -> tuple[int, ...]:
    """Order by bytes that the slice adds to an empty device."""

    def need(index: int) -> float:
        draft = board.drafts[index]
        return float(np.max(board.ledger.bytes_with(draft) - board.ledger.used_bytes()))

    depth = _depths(board, stage)
    return tuple(sorted(stage, key=lambda i: (depth[i], -board.drafts[i].tp, -need(i), i)))


def _depths(board: Board, stage: Sequence[int]) -> dict[int, int]:
    """Give how many slices of the stage each one waits for in a row: sources are placed first."""
    depth: dict[int, int] = {}
    waiting = set(stage)
    while waiting:
        ready = [i for i in stage if i in waiting and waiting.isdisjoint(board.sources(i))]
        assert ready, "the slices of a stage wait for each other in a circle"
        depth |= {
            i: 1 + max((depth[s] for s in board.sources(i) if s in depth), default=-1)
            for i in ready
        }
        waiting.difference_update(ready)
    return depth


def _last_resort(board: Board, stage: Sequence[int]) -> OutOfMemoryError | None:
    """Place a stage whatever its memory; give the error for its first slice that doesn't fit.

    What a slice adds is told too large under ZeRO-1, before all are known that share the optimizer
    states: it may fit after all.

    Raises:
        NoRoomError: too few devices are free for a slice of it.
    """
    order = _by_memory(board, stage)
    board.begin_stage(order)
    free = board.claims.free
    for position, index in enumerate(order):
        chosen = _choose(board, index, order[position + 1 :], memory_first=True)
        groups = [chosen[0]] if chosen else _emptiest(board, board.drafts[index])
        for group in groups:
            board.put(index, group)
            if _fits(board, group):
                break
            board.take_back()
        else:
            board.put(index, groups[0])
            return _worst(board, groups[0].devices)
        free[list(group.devices)] = False
    return None


def _emptiest(board: Board, draft: DraftSlice) -> list[Group]:
    """Give the devices that would hold least with the draft, and those that hold least so far."""
    if draft.devices is not None:
        return [Group(draft.devices, draft.tp)]
    groups = []
    for told in (board.ledger.bytes_with(draft), board.ledger.used_bytes()):
        full = np.where(board.claims.free, told, np.inf).reshape(-1, draft.tp).max(axis=1)
        units = np.argsort(full, kind="stable")[: draft.num_devices // draft.tp]
        if not np.isfinite(full[units]).all():
            raise _no_room(draft)
        devices = tuple(
            int(u) * draft.tp + rank for u in np.sort(units) for rank in range(draft.tp)
        )
        groups.append(Group(devices, draft.tp))
    return groups


def _fits(board: Board, group: Group) -> bool:
    used = board.ledger.used_bytes()[list(group.devices)]
    return bool((used <= board.ledger.capacity_bytes).all())


def _worst(board: Board, devices: Sequence[int]) -> OutOfMemoryError:
    used = board.ledger.used_bytes()
    device = max(devices, key=lambda d: (used[d], -d))
    more_to_come = len(board.groups) < len(board.drafts)
    return shortage(board.context, board.ledger, device, more_to_come=more_to_come)


def _check(draft: DraftSlice, devices: tuple[int, ...], cluster: Cluster) -> None:
    if len(devices) < draft.num_devices or max(devices) >= cluster.num_devices:
        raise InfeasibleError(
            f"{draft.metaop}: stage {draft.stage} of round {draft.round} needs more than the"
            f" {cluster.num_devices} devices of cluster {cluster.name}"
        )
    for start in range(0, len(devices), draft.tp):
        ranks = devices[start : start + draft.tp]
        if len({cluster.island_of(device) for device in ranks}) > 1:
            raise InfeasibleError(
                f"{draft.metaop}: tensor-parallel devices {', '.join(map(str, ranks))} span device"
                f" islands of {cluster.island_size}; use a degree that divides the island size"
            )
