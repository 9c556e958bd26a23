"""Spindle-Optimus (section 5.1, after the cluster scheduler Optimus): devices by marginal gain.

The gain of giving a task n' instead of n devices, n' being its next valid size, is
(T^(c)(n) - T^(c)(n')) / (n' - n); the task with the largest gain is served first.
"""

from collections.abc import Sequence

from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.strategies.task_level import (
    pack,
    run_tasks,
    smallest,
    task_time_s,
    useful_sizes,
)

__all__ = ["optimus"]


def optimus(context: Context) -> Sequence[tuple[DraftSlice, ...]]:
    """Serve tasks by marginal gain; where there are more tasks than devices, the longest first."""
    tasks = [task.name for task in context.workload.tasks]
    sizes = {task: smallest(context, task) for task in tasks}
    free = context.cluster.num_devices - sum(sizes.values())
    while (step := _best_step(context, sizes, free)) is not None:
        task, size = step
        free -= size - sizes[task]
        sizes[task] = size
    if free < 0:
        order = sorted(tasks, key=lambda task: -task_time_s(context, task, sizes[task]))
    else:
        order = sorted(tasks, key=lambda task: -sizes[task])
    return [run_tasks(context, pack(context, [(task, sizes[task]) for task in order]))]


def _best_step(context: Context, sizes: dict[str, int], free: int) -> tuple[str, int] | None:
    best, best_gain = None, 0.0
    for task, size in sizes.items():
        now_s = task_time_s(context, task, size)
        for larger in useful_sizes(context, task):
            if larger <= size:
                continue
            if larger - size <= free:
                gain = (now_s - task_time_s(context, task, larger)) / (larger - size)
                if gain > best_gain:
                    best, best_gain = (task, larger), gain
            break
    return best
