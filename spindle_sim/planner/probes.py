"""What of a workload is worth measuring: each distinct operator at every per-device batch.

One device is enough for the compute of any n = dp * tp, since only the batch of a device counts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from spindle_sim.estimate import Estimator
from spindle_sim.estimate.probe import Probe, StepProbe
from spindle_sim.plan import Backward, Plan
from spindle_sim.planner.metagraph import MetaGraph, MetaNode
from spindle_sim.workload import Workload

__all__ = ["TENSOR_PARALLEL_DEGREES", "probes", "probes_of_plans", "step_probes"]

TENSOR_PARALLEL_DEGREES = (1, 2, 4, 8)  # those that plans use


def probes(graph: MetaGraph, estimator: Estimator) -> tuple[Probe, ...]:
    """Give the probes that the allocations of the estimator's cluster lead to, smallest first.

    Operators of equal signature are measured once, for the batches of all MetaOps that have them.
    """
    found: dict[tuple[object, ...], Probe] = {}
    for node in graph.nodes.values():
        for tp in TENSOR_PARALLEL_DEGREES:
            curve = estimator.curve(node.operator, Backward.FULL, tp=tp)
            for allocation in curve.allocations:
                probe = _probe(graph, node, tp, replicas=allocation // tp)
                found.setdefault((probe.signature, probe.samples), probe)
    return tuple(sorted(found.values(), key=lambda probe: probe.work))


def probes_of_plans(graph: MetaGraph, plans: Sequence[Plan]) -> tuple[Probe, ...]:
    """Give the probes that the slices of plans of one workload run, smallest first.

    Each is chained as its operator is in the median slice.
    """
    found: dict[tuple[object, ...], Probe] = {}
    lengths: dict[tuple[object, ...], list[int]] = {}
    for plan in plans:
        for item in plan.slices:
            replicas = item.dp * plan.micro_batches(item.round)  # of batch / replicas samples
            probe = _probe(graph, graph.nodes[item.metaop], item.tp, replicas=replicas)
            found.setdefault((probe.signature, probe.samples), probe)
            lengths.setdefault((probe.signature, probe.samples), []).append(item.num_ops)
    chains = [
        replace(probe, chained=statistics.median_low(lengths[key])) for key, probe in found.items()
    ]
    return tuple(sorted(chains, key=lambda probe: probe.work))


def step_probes(workload: Workload) -> tuple[StepProbe, ...]:
    """Give steps over all trained operators of a workload, and over every other one of them."""
    trained = tuple(
        block.operator
        for module in workload.modules
        if not module.frozen
        for block in module.blocks
        if block.operator.parameters
        for _ in range(block.repeat)
    )
    halves = StepProbe(operators=trained[::2]), StepProbe(operators=trained)
    return tuple(probe for probe in halves if probe.operators)


def _probe(graph: MetaGraph, node: MetaNode, tp: int, *, replicas: int) -> Probe:
    operator = node.operator
    coupled = operator.cost.gathered_bytes > 0
    sources = (graph.nodes[name].operator for name in node.metaop.predecessors)
    return Probe(
        operator=operator.operator,
        tokens=operator.tokens,
        samples=operator.batch_size * operator.items // replicas,
        context_tokens=operator.context_tokens,
        flowing_tokens=sum(source.tokens for source in sources),
        tp=tp,
        batch_size=operator.batch_size if coupled else None,
        replicas=replicas if coupled else 1,
    )
