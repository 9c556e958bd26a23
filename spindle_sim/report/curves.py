"""The scaling curves of a plan's MetaOps, from the times that it was made with."""

from typing import TYPE_CHECKING

from spindle_sim.plan import Plan
from spindle_sim.report.run import Curve
from spindle_sim.workload import OperatorNode, operator_graph

if TYPE_CHECKING:
    from spindle_sim.estimate import Profile

__all__ = ["scaling_curves"]


def scaling_curves(plan: Plan, profile: "Profile | None" = None) -> tuple[Curve, ...]:
    """Give T_m(n) of one operator of every MetaOp.

    `profile` is the one that the plan was made from, if any. None where the plan's times came from
    elsewhere, such as another version's model: curves drawn from other times would mislead.
    """
    from spindle_sim.estimate import Estimator

    estimator = Estimator(plan.cluster, profile)
    if estimator.profile_hash != plan.inputs.profile:
        return ()
    nodes: dict[str, OperatorNode] = {}
    for _, data in operator_graph(plan.workload).nodes(data=True):
        node: OperatorNode = data["operator"]
        nodes.setdefault(f"{node.task}/{node.use}/{node.block}", node)
    tps = {item.metaop: item.tp for item in plan.slices}
    curves = []
    for metaop in plan.metaops:
        curve = estimator.curve(nodes[metaop.id], metaop.backward, tp=tps.get(metaop.id, 1))
        points = tuple((n, curve.time_s(n)) for n in curve.allocations)
        if points:
            curves.append(Curve(name=metaop.id, points=points))
    return tuple(curves)
