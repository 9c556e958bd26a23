"""The same plan with other times: what its slices take by another estimator.

Devices, order, flows and groups stay: a plan that was made from one profile can be simulated with
a later one of the same device.
"""

from collections.abc import Sequence
from dataclasses import replace

from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan, Slice
from spindle_sim.planner.contract import contract
from spindle_sim.planner.metagraph import MetaGraph

__all__ = ["retimed"]


def retimed(plan: Plan, estimator: Estimator, *, ranks: Sequence[Estimator] | None = None) -> Plan:
    """Give the plan with the durations that `estimator` states, and its profile's name.

    With `ranks`, one for each device, a slice of a single device takes what that one's states.
    """
    graph = contract(plan.workload)
    return replace(
        plan,
        slices=tuple(
            _retimed(
                item,
                graph,
                estimator if ranks is None or len(item.devices) > 1 else ranks[item.devices[0]],
                micro_batches=plan.micro_batches(item.round),
            )
            for item in plan.slices
        ),
        inputs=replace(plan.inputs, profile=estimator.profile_hash),
        profile=estimator.profile_name,
    )


def _retimed(item: Slice, graph: MetaGraph, estimator: Estimator, *, micro_batches: int) -> Slice:
    node = graph.nodes[item.metaop]
    forward_s, backward_s = estimator.operation_s(
        node.operator,
        node.metaop.backward,
        samples=node.metaop.batch / (item.dp * micro_batches),
        dp=item.dp,
        tp=item.tp,
        recompute=item.recompute,
        selective=item.selective,
        sequence_parallel=item.sequence_parallel,
    )
    return replace(item, forward_s=item.num_ops * forward_s, backward_s=item.num_ops * backward_s)
