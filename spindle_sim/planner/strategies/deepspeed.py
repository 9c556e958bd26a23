"""DeepSpeed (section 5.1): data parallelism with ZeRO, tuned for each task.

Tasks one after another, each on the whole cluster, with micro-batches (gradient accumulation) and
activation checkpointing. One engine trains all of them: one ZeRO stage, 0 to 3. Gradients are
reduced in buckets beside the backward (`overlap_comm`).
"""

from spindle_sim.plan import Plan
from spindle_sim.planner.context import Context
from spindle_sim.planner.strategies.space import Space
from spindle_sim.planner.strategies.tuning import tuned_plan

__all__ = ["SPACE", "deepspeed"]

SPACE = Space(tensor=False, pipeline=False, selective=False, zero_stages=(0, 1, 2, 3))


def deepspeed(context: Context, zero1: bool | None) -> Plan:  # noqa: FBT001
    """Give the plan under the best configurations."""
    return tuned_plan(context, SPACE.limited(zero1), strategy="deepspeed")
