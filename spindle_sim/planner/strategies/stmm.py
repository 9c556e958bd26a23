"""Spindle-STMM (section 5.1, after DistMM): each multi-modal task planned for itself, one by one.

Aware of heterogeneity within a task (its encoders side by side, each with the devices it needs),
not among tasks.
"""

from collections.abc import Sequence

from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.strategies.spindle import merge_rounds

__all__ = ["stmm"]


def stmm(context: Context) -> Sequence[tuple[DraftSlice, ...]]:
    """Plan each task with Spindle's own allocator and scheduler on all devices, in a round each."""
    return merge_rounds(context, [(task.name,) for task in context.workload.tasks])
