"""Which flows lie cut along the tokens on both sides, so that each rank sends what it has.

Every backend has the same answer, and so has whoever estimates what a transfer takes.
"""

from collections.abc import Mapping

from spindle_sim.plan.model import Plan, Slice

__all__ = ["cut_flows", "token_shards"]


def cut_flows(plan: Plan) -> frozenset[int]:
    """Give the flows whose tokens lie cut on the tensor-parallel ranks of both sides, by index.

    Both sides run with sequence parallelism and one degree, and what else leaves the source is
    taken so, too; a device that is in both has the same tokens there. What flows elsewhere is
    gathered before it leaves.
    """
    slices = plan.slice_by_id()
    alike: dict[str, bool] = {}
    for flow in plan.flows:
        source = slices[flow.source_slice]
        if source.sequence_parallel:
            target = slices[flow.target_slice]
            alike[source.id] = alike.get(source.id, True) and _cut_alike(source, target)
    return frozenset(index for index, flow in enumerate(plan.flows) if alike.get(flow.source_slice))


def token_shards(plan: Plan) -> Mapping[tuple[str, str], int]:
    """Give in how many parts the tokens of a flow lie on the tensor-parallel ranks of both sides.

    By source and target, where they do.
    """
    slices = plan.slice_by_id()
    flows = (plan.flows[index] for index in cut_flows(plan))
    return {(flow.source_slice, flow.target_slice): slices[flow.source_slice].tp for flow in flows}


def _cut_alike(source: Slice, target: Slice) -> bool:
    if not (source.sequence_parallel and target.sequence_parallel and source.tp == target.tp):
        return False
    taking = {device: position % target.tp for position, device in enumerate(target.devices)}
    return all(
        taking.get(device, position % source.tp) == position % source.tp
        for position, device in enumerate(source.devices)
    )
