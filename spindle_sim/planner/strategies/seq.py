"""Spindle-Seq (section 5.1): all devices to each task, the tasks one after the other."""

from collections.abc import Sequence

from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.strategies.task_level import run_tasks

__all__ = ["seq"]


def seq(context: Context) -> Sequence[tuple[DraftSlice, ...]]:
    """Run each MetaOp on its fastest valid allocation of the whole cluster, a round a task."""
    devices = tuple(range(context.cluster.num_devices))
    return [run_tasks(context, [(task.name, devices) for task in context.workload.tasks])]
