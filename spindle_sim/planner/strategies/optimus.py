"""Spindle-Optimus (section 5.1, after the cluster scheduler Optimus): devices by marginal gain.

The gain of giving a task n' instead of n devices, n' being its next valid size, is
(T^(c)(n) - T^(c)(n')) / (n' - n); the task with the largest gain is served first.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
    steps = {task: _step(context, task, sizes[task]) for task in tasks}
    free = context.cluster.num_devices - sum(sizes.values())
    while True:
        fitting = [task for task, step in steps.items() if 0 < step.devices <= free]
        best = max(fitting, key=lambda task: steps[task].gain, default=None)
        if best is None or steps[best].gain <= 0:
            break
        free -= steps[best].devices
        sizes[best] += steps[best].devices
        steps[best] = _step(context, best, sizes[best])
    if free < 0:
        order = sorted(tasks, key=lambda task: -task_time_s(context, task, sizes[task]))
    else:
        order = sorted(tasks, key=lambda task: -sizes[task])
    return [run_tasks(context, pack(context, [(task, sizes[task]) for task in order]))]


class _Step(NamedTuple):
    """From a task's size to its next valid one: more devices, seconds gained for each of them."""

    devices: int = 0
    gain: float = 0.0


def _step(context: Context, task: str, size: int) -> _Step:
    larger = next((n for n in useful_sizes(context, task) if n > size), None)
    if larger is None:
        return _Step()
    gained_s = task_time_s(context, task, size) - task_time_s(context, task, larger)
    return _Step(larger - size, gained_s / (larger - size))
