"""Megatron-LM (section 5.1): tensor, pipeline and data parallelism, tuned for each task.

Tasks one after another, each on the whole cluster, with micro-batches, interleaved pipelines,
sequence parallelism, selective or full recomputation, with or without the distributed optimizer
(ZeRO-1). Gradients are reduced beside the backward (`--overlap-grad-reduce`).
"""

from spindle_sim.plan import Plan
from spindle_sim.planner.context import Context
from spindle_sim.planner.strategies.space import Space
from spindle_sim.planner.strategies.tuning import tuned_plan

__all__ = ["SPACE", "megatron"]

SPACE = Space(tensor=True, pipeline=True, selective=True, zero_stages=(0, 1))


def megatron(context: Context, zero1: bool | None) -> Plan:  # noqa: FBT001
    """Give the plan under the best configurations."""
    return tuned_plan(context, SPACE.limited(zero1), strategy="megatron")
