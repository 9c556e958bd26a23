"""How long an iteration of a plan will take, roughly: to choose between plans that look alike.

As `plan.schedule`, but every flow takes what it takes alone on idle links, and then the parameter
groups synchronize one after the other on each device and each node's NICs. It leaves out what the
simulator is for: links shared by flows at one time.
"""

from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import operation_order
from spindle_sim.planner.affinity import Affinity, Group

__all__ = ["forecast_s"]


def forecast_s(plan: Plan, estimator: Estimator) -> float:
    """Give the seconds until the last device has synchronized."""
    free = _compute(plan)
    nodes = plan.cluster.num_nodes
    network = [0.0] * nodes
    spans = {d: plan.cluster.node_of(d) for d in range(plan.cluster.num_devices)}
    groups = [group for group in plan.parameter_groups if len(group.devices) > 1]
    ready = {id(group): max(free[d] for d in group.devices) for group in groups}
    for group in sorted(groups, key=lambda group: (ready[id(group)], group.devices, group.shard)):
        start_s = max(free[d] for d in group.devices)
        touched = sorted({spans[d] for d in group.devices})
        if len(touched) > 1:
            start_s = max(start_s, max(network[node] for node in touched))
        end_s = start_s + estimator.all_reduce_s(group.bytes, group.devices)
        for device in group.devices:
            free[device] = end_s
        if len(touched) > 1:
            for node in touched:
                network[node] = end_s
    return max(free)


def _compute(plan: Plan) -> list[float]:
    """Give when each device has done its last backward."""
    affinity = Affinity(plan.cluster)
    groups = [Group(item.devices, item.tp) for item in plan.slices]
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    forward: list[list[tuple[int, float]]] = [[] for _ in plan.slices]
    backward: list[list[tuple[int, float]]] = [[] for _ in plan.slices]
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        delay_s = affinity.transfer_s(groups[source], groups[target], flow.bytes)
        forward[target].append((source, delay_s))
        if flow.gradient:
            backward[source].append((target, delay_s))
    free = [0.0] * plan.cluster.num_devices
    ends = [[0.0, 0.0] for _ in plan.slices]
    for operation in operation_order(plan):
        index = operation.slice_index
        item = plan.slices[index]
        waits = backward[index] if operation.backward else forward[index]
        duration_s = item.backward_s if operation.backward else item.forward_s
        side = int(operation.backward)
        start_s = max(free[d] for d in item.devices)
        for other, delay_s in waits:
            start_s = max(start_s, ends[other][side] + delay_s)
        ends[index][side] = end_s = start_s + duration_s
        for device in item.devices:
            free[device] = end_s
    return free
