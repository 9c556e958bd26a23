"""Graph contraction (section 3.1): runs of equal operators become MetaOps, the graph a MetaGraph.

Also what each MetaOp's backward computes, since that depends on what trains before it.
"""

from dataclasses import dataclass, field

import networkx as nx

from spindle_sim.plan import Backward, MetaOp
from spindle_sim.planner.levels import metalevels
from spindle_sim.planner.metagraph import MetaEdge, MetaGraph, MetaNode
from spindle_sim.workload import (
    Custom,
    OperatorCost,
    OperatorNode,
    Projection,
    Workload,
    operator_graph,
)

__all__ = ["contract"]


@dataclass(slots=True)
class _Run:
    """Operators being contracted: the first one, how many, and the flows that enter it."""

    id: str
    first: OperatorNode
    num_ops: int = 1
    inputs: dict[str, float] = field(default_factory=dict)  # run id -> bytes of the global batch


def contract(workload: Workload) -> MetaGraph:
    """Give the MetaGraph of all tasks; its nodes are in topological order, task by task.

    Two operators are contracted where one flows into the other and nowhere else, nothing else
    flows into the other, and both have the same workload. Takes time linear in the operators.
    """
    graph = operator_graph(workload)
    frozen = {module.name: module.frozen for module in workload.modules}
    runs = _contract(graph)
    levels = metalevels({run.id: tuple(run.inputs) for run in runs})
    nodes: dict[str, MetaNode] = {}
    edges: list[MetaEdge] = []
    trained: dict[str, bool] = {}  # whether anything at or before the run trains
    for run in runs:
        before = any(trained[source] for source in run.inputs)
        is_frozen = frozen[run.first.module]
        weights = not is_frozen and _has_weights(run.first)
        trained[run.id] = before or weights
        backward = _backward(before=before, weights=weights, frozen=is_frozen, num_ops=run.num_ops)
        cost = run.first.cost
        metaop = _metaop(run, cost, levels[run.id], frozen=is_frozen, backward=backward)
        nodes[run.id] = MetaNode(metaop=metaop, operator=run.first, cost=cost)
        edges += [
            MetaEdge(source=source, target=run.id, bytes=size, gradient=trained[source])
            for source, size in run.inputs.items()
        ]
    return MetaGraph(nodes=nodes, edges=tuple(edges))


def _contract(graph: "nx.DiGraph[str]") -> list[_Run]:
    place = {node: index for index, node in enumerate(graph)}
    run_of: dict[str, _Run] = {}
    runs: list[_Run] = []
    for name in nx.lexicographical_topological_sort(graph, key=place.__getitem__):
        node: OperatorNode = graph.nodes[name]["operator"]
        sources = graph.pred[name]
        only = next(iter(sources)) if len(sources) == 1 else None
        if only is not None and _contracts(graph, only, node):
            run = run_of[only]
            run.num_ops += 1
        else:
            run = _Run(id=f"{node.task}/{node.use}/{node.block}", first=node)
            run.inputs = {run_of[source].id: edge["bytes"] for source, edge in sources.items()}
            runs.append(run)
        run_of[name] = run
    return runs


def _contracts(graph: "nx.DiGraph[str]", source: str, target: OperatorNode) -> bool:
    node: OperatorNode = graph.nodes[source]["operator"]
    return (
        graph.out_degree(source) == 1
        # A module that a task runs twice in a row starts anew at its first parameters.
        and target.index == node.index + 1
        and node.signature == target.signature
    )


def _has_weights(node: OperatorNode) -> bool:
    operator = node.operator
    if isinstance(operator, Custom) and operator.tied_to:
        return True
    return operator.parameters > 0 or (isinstance(operator, Projection) and operator.tied)


def _backward(*, before: bool, weights: bool, frozen: bool, num_ops: int) -> Backward:
    if before:
        return Backward.INPUT_ONLY if frozen else Backward.FULL
    if not weights:
        return Backward.NONE
    # From the second operator on, inputs need gradients: they come from trained operators.
    return Backward.WEIGHT_ONLY if num_ops == 1 else Backward.FULL


def _metaop(
    run: _Run, cost: OperatorCost, level: int, *, frozen: bool, backward: Backward
) -> MetaOp:
    node = run.first
    return MetaOp(
        id=run.id,
        task=node.task,
        module=node.module,
        kind=node.operator.kind,
        num_ops=run.num_ops,
        batch=node.batch_size,
        level=level,
        predecessors=tuple(run.inputs),
        parameter_set=f"{node.module}/{node.block}",
        parameters=node.operator.parameters,
        sharded_parameters=node.operator.sharded_parameters,
        frozen=frozen,
        backward=backward,
        flops=cost.flops * node.items * node.batch_size,
        input_bytes=sum(run.inputs.values()) / node.batch_size,
        output_bytes=cost.output_bytes * node.items,
        saved_bytes=cost.saved_bytes * node.items,
        saved_replicated_bytes=cost.saved_replicated_bytes * node.items,
        batch_coupled=cost.gathered_bytes > 0,
        saved_attention_bytes=_attention_bytes(cost) * node.items,
        context_bytes=node.context_bytes * node.items,
    )


def _attention_bytes(cost: OperatorCost) -> float:
    """Give what an attention core alone keeps for its backward: the scores, or flash's sums.

    Its inputs and its output are kept all the same, by the products around it.
    """
    if cost.saved_attention_bytes:
        return cost.saved_attention_bytes
    sums = sum(item.count * item.heads * item.queries for item in cost.attentions)
    return min(cost.saved_bytes, 4.0 * sums)
