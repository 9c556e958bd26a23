"""Spindle-Uniform (section 5.1): equally many devices to each task, whatever its work."""

from collections.abc import Sequence

from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.strategies.task_level import pack, run_tasks, smallest, useful_sizes

__all__ = ["uniform"]


def uniform(context: Context) -> Sequence[tuple[DraftSlice, ...]]:
    """Deal devices out evenly; where there are more tasks than devices, tasks take turns."""
    tasks = [task.name for task in context.workload.tasks]
    num_devices = context.cluster.num_devices
    share = num_devices // len(tasks)
    sizes: dict[str, int] = {}
    for task in tasks:
        fitting = [n for n in useful_sizes(context, task) if n <= share]
        sizes[task] = max(fitting, default=smallest(context, task))
    free = num_devices - sum(sizes.values())
    # What the even share leaves over (valid sizes are few) goes to tasks in turn.
    for task in tasks:
        larger = [n for n in useful_sizes(context, task) if sizes[task] < n <= sizes[task] + free]
        if larger:
            free -= larger[0] - sizes[task]
            sizes[task] = larger[0]
    return [run_tasks(context, pack(context, _widest_first(tasks, sizes)))]


def _widest_first(tasks: list[str], sizes: dict[str, int]) -> list[tuple[str, int]]:
    return [(task, sizes[task]) for task in sorted(tasks, key=lambda task: -sizes[task])]
