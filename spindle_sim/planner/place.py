"""Device placement (section 3.5): which devices run each draft, stage by stage, greedily.

Where a device's memory is short, a stage is placed anew by memory first; where that isn't enough,
so are ever more of the stages before it (backtracking), at last all of them.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.planner.affinity import Group
from spindle_sim.planner.board import Board, Cost
from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import OutOfMemoryError
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.select import select

__all__ = ["place"]

MAX_STEPS_BACK = 64
# A stage of at most so many slices is placed in several orders, of which the best is kept.
SMALL_STAGE = 12
# Other orders aren't tried where the first loses less than this share of the slices' time.
LITTLE = 0.005


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
        InfeasibleError: a tensor-parallel group would span device islands.
    """
    board = Board(context, drafts, sync_weight)
    stages = list(_stages(drafts))
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
    for index in sorted(stage, key=lambda i: (depth[i], -board.drafts[i].tp)):
        draft = board.drafts[index]
        devices = draft.devices
        if devices is None:
            units = np.flatnonzero(free.reshape(-1, draft.tp).all(axis=1)) * draft.tp
            firsts = units[: draft.num_devices // draft.tp]
            devices = tuple(int(first) + rank for first in firsts for rank in range(draft.tp))
        _check(draft, devices, board.context.cluster)
        board.put(index, Group(devices, draft.tp))
        free[list(devices)] = False
        if (board.ledger.used_bytes()[list(devices)] > board.ledger.capacity_bytes).any():
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
            raise _shortage(board, stages[current])
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
    for index in order:
        board.claim(index, -1)
        chosen = select(board, index, memory_first=memory_first)
        if chosen is None:
            for _ in costs:
                board.take_back()
            return None
        group, cost = chosen
        board.put(index, group)
        board.claims.free[list(group.devices)] = False
        costs.append(cost)
    return costs


def _stays(board: Board, index: int) -> bool:
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


def _shortage(board: Board, stage: Sequence[int]) -> OutOfMemoryError:
    """Give the error for the first slice of the stage that fits nowhere."""
    order = _by_memory(board, stage)
    board.begin_stage(order)
    free = board.claims.free
    for index in order:
        draft = board.drafts[index]
        chosen = select(board, index, memory_first=True)
        if chosen is not None:
            board.put(index, chosen[0])
            free[list(chosen[0].devices)] = False
            continue
        full = np.where(free, board.ledger.bytes_with(draft), np.inf)
        units = np.argsort(full.reshape(-1, draft.tp).max(axis=1), kind="stable")
        firsts = np.sort(units[: draft.num_devices // draft.tp]) * draft.tp
        devices = tuple(int(first) + rank for first in firsts for rank in range(draft.tp))
        board.put(index, Group(devices, draft.tp))
        return _worst(board, devices)
    raise AssertionError("the stage fits after all")


def _worst(board: Board, devices: Sequence[int]) -> OutOfMemoryError:
    used = board.ledger.used_bytes()
    device = max(devices, key=lambda d: (used[d], -d))
    return board.ledger.shortage(device, float(used[device]))


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
