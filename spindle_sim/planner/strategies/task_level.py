"""What the task-level strategies share: a task has devices and runs its MetaOps in order.

A task on n devices runs each MetaOp on the fastest valid allocation up to n.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.moves import Moves

__all__ = ["pack", "run_tasks", "size_near_data", "smallest", "task_time_s", "useful_sizes"]


def task_time_s(context: Context, task: str, num_devices: int) -> float:
    """Give a task's completion time T^(c)(n): its MetaOps one after the other, seconds."""
    return sum(
        min(context.times_s(m, num_devices).values()) * context.graph.nodes[m].metaop.num_ops
        for m in context.metaops_of(task)
    )


def smallest(context: Context, task: str) -> int:
    """Give the fewest devices on which every MetaOp of the task is valid."""
    return max(min(context.times_s(m)) for m in context.metaops_of(task))


def useful_sizes(context: Context, task: str) -> tuple[int, ...]:
    """Give the numbers of devices, ascending, at which the task gets faster."""
    least = smallest(context, task)
    sizes = {n for m in context.metaops_of(task) for n in context.times_s(m)}
    return tuple(sorted(n for n in sizes | {least} if n >= least))


def pack(context: Context, sizes: Sequence[tuple[str, int]]) -> list[tuple[str, tuple[int, ...]]]:
    """Give each task a run of devices: side by side while they fit, else on the least loaded.

    The order of `sizes` is kept on every device.
    """
    num_devices = context.cluster.num_devices
    load_s = np.zeros(num_devices)
    placed = []
    for task, size in sizes:
        # Aligned where possible, so that a group of an island's size is one island.
        busiest_s = sliding_window_view(load_s, size).max(axis=1)
        starts = np.flatnonzero(busiest_s == busiest_s.min()).tolist()
        start = min(starts, key=lambda d: (d % size != 0, d))
        devices = tuple(range(start, start + size))
        load_s[start : start + size] = busiest_s[start] + task_time_s(context, task, size)
        placed.append((task, devices))
    return placed


def run_tasks(
    context: Context, placed: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[DraftSlice, ...]:
    """Run tasks on their devices; those that share a device take turns, a round each."""
    rounds: dict[int, int] = defaultdict(int)
    drafts = []
    for task, devices in placed:
        index = max(rounds[d] for d in devices)
        for d in devices:
            rounds[d] = index + 1
        for stage, metaop in enumerate(context.metaops_of(task)):
            size = size_near_data(context, metaop, len(devices))
            drafts.append(
                context.draft(
                    metaop,
                    num_devices=size,
                    stage=stage,
                    round_index=index,
                    devices=devices[:size],
                )
            )
    return tuple(sorted(drafts, key=lambda draft: (draft.round, draft.stage)))


def size_near_data(context: Context, metaop: str, num_devices: int) -> int:
    """Give the allocation a MetaOp of a task on `num_devices` devices runs on.

    All of them where that is valid, as the task's data lies on all of them; fewer only where that
    saves more than moving the data there and back costs.
    """
    curve, node = context.curve(metaop), context.graph.nodes[metaop].metaop
    sizes = [n for n in curve.allocations if n <= num_devices]
    widest = max(sizes)
    moves = Moves.of(context.graph.nodes[metaop], context.cluster)
    flow_bytes = 2.0 * node.batch * (node.input_bytes + node.output_bytes)
    moves = replace(moves, flow_bytes=flow_bytes)

    def total_s(n: int) -> float:
        return node.num_ops * curve.time_s(n) + moves.seconds(widest, n)

    return min(sizes, key=lambda n: (total_s(n), -n))
