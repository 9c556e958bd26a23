"""How long an iteration of a plan will take, roughly: to choose between plans that look alike.

As `plan.schedule`, but every flow takes what it takes alone on idle links (a micro-batch its part),
and then the parameter groups synchronize one after the other on each device and each node's NICs,
once for all micro-batches. It leaves out what the simulator is for: links shared by flows at one
time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.estimate import Estimator
from spindle_sim.plan import ParameterGroup, Plan, Slice
from spindle_sim.plan.schedule import operation_order
from spindle_sim.planner.affinity import Affinity, Group

__all__ = ["forecast_s", "overlapped_s"]

# What leaves behind the last backward: a bucket.
TAIL_BYTES = 25e6


def forecast_s(plan: Plan, estimator: Estimator) -> float:
    """Give the seconds until the last device has synchronized."""
    free, _ = _compute(plan)
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


def overlapped_s(plan: Plan, estimator: Estimator) -> float:
    """Give the seconds if gradients synchronize beside the backward, as they become complete.

    A group begins with the first of its operators that is complete, and ends behind the last one;
    it has the links of its devices to itself for as long as it takes.
    """
    free, backward = _compute(plan)
    links = [0.0] * plan.cluster.num_devices
    network = [0.0] * plan.cluster.num_nodes
    complete = _Completion.of(plan, backward)
    groups = [group for group in plan.parameter_groups if len(group.devices) > 1]
    spans = sorted(((complete.span(group), group) for group in groups), key=lambda pair: pair[0])
    end_s = max(free)
    for (first_s, last_s), group in spans:
        touched = sorted({plan.cluster.node_of(d) for d in group.devices})
        far = touched if len(touched) > 1 else []
        takes_s = estimator.all_reduce_s(group.bytes, group.devices)
        start_s = max(first_s, *(links[d] for d in group.devices), *(network[n] for n in far))
        for device in group.devices:
            links[device] = start_s + takes_s
        for node in far:
            network[node] = start_s + takes_s
        tail_s = takes_s * min(1.0, TAIL_BYTES / group.bytes) if group.bytes else 0.0
        end_s = max(end_s, start_s + takes_s, last_s + tail_s)
    return end_s


@dataclass(frozen=True, slots=True)
class _Completion:
    """When the gradients of each parameter set's operators are complete, by slices."""

    runs: dict[str, list[tuple[Slice, tuple[float, float]]]]

    @staticmethod
    def of(plan: Plan, backward: Sequence[tuple[float, float]]) -> "_Completion":
        sets = {metaop.id: metaop.parameter_set for metaop in plan.metaops}
        runs: dict[str, list[tuple[Slice, tuple[float, float]]]] = {}
        for item, times in zip(plan.slices, backward, strict=True):
            runs.setdefault(sets[item.metaop], []).append((item, times))
        return _Completion(runs)

    def span(self, group: ParameterGroup) -> tuple[float, float]:
        """Give when the first and the last operator of a group is complete."""
        ends = [
            self._at(part.parameter_set, op)
            for part in group.parameter_sets
            for op in (part.first_op, part.first_op + part.num_ops - 1)
        ]
        return min(ends), max(ends)

    def _at(self, name: str, op: int) -> float:
        """Operators of a slice go backward from the last one, each for an equal part of it."""
        latest_s = 0.0
        for item, (start_s, end_s) in self.runs[name]:
            behind = op - item.first_op
            if 0 <= behind < item.num_ops:
                latest_s = max(latest_s, end_s - behind / item.num_ops * (end_s - start_s))
        return latest_s


def _compute(plan: Plan) -> tuple[list[float], list[tuple[float, float]]]:
    """Give when each device has done its last backward, and each slice's last backward's times."""
    affinity = Affinity(plan.cluster)
    groups = [Group(item.devices, item.tp) for item in plan.slices]
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    forward: list[list[tuple[int, float]]] = [[] for _ in plan.slices]
    backward: list[list[tuple[int, float]]] = [[] for _ in plan.slices]
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        size_bytes = flow.bytes / plan.micro_batches(plan.slices[source].round)
        delay_s = affinity.transfer_s(groups[source], groups[target], size_bytes)
        forward[target].append((source, delay_s))
        if flow.gradient:
            backward[source].append((target, delay_s))
    free = [0.0] * plan.cluster.num_devices
    # Flushed or accumulated: a slice's last micro-batch so far is the one that others wait for.
    ends = [[0.0, 0.0] for _ in plan.slices]
    backwards = [(0.0, 0.0)] * len(plan.slices)
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
        if operation.backward:
            backwards[index] = start_s, end_s
        for device in item.devices:
            free[device] = end_s
    return free, backwards
