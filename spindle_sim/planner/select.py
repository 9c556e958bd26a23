"""The group for one slice: candidates by each guideline of section 3.5, judged by their cost.

Guidelines: samples and parameters stay where they are, else within the island; of about equal
groups, the one with most memory left. A device that can't hold the slice is no candidate.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from spindle_sim.planner.affinity import Group
from spindle_sim.planner.board import Board, Cost, Spread
from spindle_sim.planner.candidates import best_units, strided
from spindle_sim.planner.metagraph import DraftSlice

__all__ = ["select"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Groups whose costs differ by less than this share of the slice's time count as about equal.
MEMORY_WEIGHT = 0.02


def select(board: Board, index: int, *, memory_first: bool = False) -> tuple[Group, Cost] | None:
    """Give the best group of free devices for a draft with what it costs; None if none fits.

    With `memory_first` the emptiest devices are taken, whatever the communication.
    """
    draft = board.drafts[index]
    full = board.ledger.bytes_with(draft) / board.ledger.capacity_bytes
    spreads = board.spreads(index)
    if draft.devices is not None:
        group = Group(draft.devices, draft.tp)
        fits = bool((full[np.array(draft.devices)] <= 1.0).all())
        return (group, board.cost(index, group, spreads)) if fits else None
    usable = board.claims.free & (full <= 1.0)
    source = board.main_source(index)
    if memory_first:
        groups = _groups(draft, board, usable, full[None, :])
    else:
        if source is not None and _stays(draft, source, usable):
            cost = board.cost(index, source, spreads)
            little_s = MEMORY_WEIGHT * board.durations_s[index]
            if cost.sync_s < little_s and cost.start_s <= board.ready_s(index):
                return source, cost
        groups = _groups(draft, board, usable, _scores(board, index, full, spreads))
        groups += list(_shrunk(draft, source, usable))
    best: tuple[Group, Cost] | None = None
    least_s = float("inf")
    for devices in dict.fromkeys(groups):
        group = Group(board.affinity.arranged(devices, draft.tp, source), draft.tp)
        cost = board.cost(index, group, spreads)
        seconds = _seconds(board, index, cost, full, group)
        if seconds < least_s:
            best, least_s = (group, cost), seconds
    return best


def _seconds(board: Board, index: int, cost: Cost, full: Floats, group: Group) -> float:
    """Give the cost in seconds; fullness decides among about equal groups."""
    fullest = float(full[np.array(group.devices)].max())
    balance_s = MEMORY_WEIGHT * board.durations_s[index] * fullest
    return (
        cost.start_s + cost.transfer_s + board.sync_weight * cost.sync_s + cost.claims_s + balance_s
    )


def _stays(draft: DraftSlice, source: Group, usable: Bools) -> bool:
    return (
        len(source.devices) == draft.num_devices
        and source.tp == draft.tp
        and bool(usable[np.array(source.devices)].all())
    )


def _scores(board: Board, index: int, full: Floats, spreads: Sequence[Spread]) -> Floats:
    """Give rows of seconds by device: all guidelines together, then each on its own."""
    draft = board.drafts[index]
    away = _away_s(board, index)
    missing = _missing_s(board, draft, spreads)
    wait = np.maximum(board.free_s - board.ready_s(index), 0.0)
    balance = MEMORY_WEIGHT * board.durations_s[index] * full
    little = 1e-3 * (away + missing + wait) + balance / draft.num_devices
    return np.stack(
        [away + missing + wait + little, away + little, missing + little, wait + little]
    )


def _away_s(board: Board, index: int) -> Floats:
    """Give the seconds that a device's share of the inputs takes to it, by device."""
    cluster, n = board.context.cluster, board.drafts[index].num_devices
    port = cluster.gpu.collective_bandwidth_bytes_per_s
    network = board.network_share()
    away = np.zeros(cluster.num_devices)
    for item in board.inputs[index]:
        share = item.directions * item.size_bytes / n
        devices = np.array(board.groups[item.source].devices)
        seconds = np.full(cluster.num_islands, share / network)
        seconds[devices // cluster.island_size] = share / port
        by_device = np.repeat(seconds, cluster.island_size)
        by_device[devices] = 0.0
        away += by_device
    return away


def _missing_s(board: Board, draft: DraftSlice, spreads: Sequence[Spread]) -> Floats:
    """Give the seconds of synchronization that a device adds, by device."""
    cluster = board.context.cluster
    seconds = np.zeros(cluster.num_islands)
    for spread in spreads:
        far_s = 2 * spread.op_bytes / board.network_share(2)
        for (mask, _), ops in spread.islands.items():
            if mask.bit_count() == 1:  # any other island would make it span several
                seconds += ops * far_s
                seconds[mask.bit_length() - 1] -= ops * far_s
    by_device: Floats = np.repeat(seconds, cluster.island_size)
    if spreads:
        near_s = 2 * board.gradient_bytes(draft) / cluster.gpu.collective_bandwidth_bytes_per_s
        by_device += near_s * board.ledger.missing_ops(draft)
    return by_device / float(draft.num_devices)


def _groups(draft: DraftSlice, board: Board, usable: Bools, rows: Floats) -> list[tuple[int, ...]]:
    tp = draft.tp
    scores = np.where(usable, rows, np.inf)
    if tp > 1:
        scores = scores.reshape(len(rows), -1, tp).sum(axis=2)
    count = draft.num_devices // tp
    units = best_units(scores, count, board.context.cluster.num_islands)
    cheapest = np.argsort(scores[0], kind="stable")[:count]
    if np.isfinite(scores[0][cheapest]).all():  # wherever they are
        units.append(tuple(sorted(cheapest.tolist())))
    if tp == 1:
        return units
    return [tuple(unit * tp + rank for unit in group for rank in range(tp)) for group in units]


def _shrunk(draft: DraftSlice, source: Group | None, usable: Bools) -> Iterator[tuple[int, ...]]:
    """Give every other (third, ...) device of the source, where it has more than are needed."""
    if source is None or source.tp != draft.tp or len(source.devices) <= draft.num_devices:
        return
    firsts = [d for d in source.devices[:: draft.tp] if d % draft.tp == 0]
    free = [d for d in firsts if usable[d : d + draft.tp].all()]
    if len(free) * draft.tp < draft.num_devices:
        return
    chosen = sorted(strided(free, draft.num_devices // draft.tp))
    yield tuple(first + rank for first in chosen for rank in range(draft.tp))
