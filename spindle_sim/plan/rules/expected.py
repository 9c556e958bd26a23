"""What the embedded workload demands of its MetaOps and their flows, derived from nothing else.

This is what a stranger would derive from section 3.1; the planner's contraction isn't asked.
"""

from dataclasses import dataclass

import networkx as nx

from spindle_sim.plan.model import Backward
from spindle_sim.workload import Operator, OperatorNode, Projection, Workload, operator_graph

__all__ = [
    "ExpectedEdge",
    "ExpectedMetaOp",
    "expected_edges",
    "expected_metaops",
]


BYTES_PER_SUM = 4.0  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMetaOp:
    """One use of one block by one task; bytes of the whole global batch, of one operator."""

    id: str
    operator: OperatorNode
    num_ops: int
    frozen: bool
    backward: Backward
    level: int
    predecessors: tuple[str, ...]
    input_bytes: float
    output_bytes: float
    context_bytes: float

    def hands(self, target: "ExpectedMetaOp") -> float:
        """Give what flows from a slice of it into one of `target`: a context stays in its use."""
        return _handed_bytes(self, target.operator, target.context_bytes)

    @property
    def parameter_set(self) -> str:
        """The block whose parameters it uses."""
        return f"{self.operator.module}/{self.operator.block}"

    @property
    def saved_attention_bytes(self) -> float:
        """What an attention core alone keeps of one sample: the scores, or flash's softmax sums.

        Its inputs and outputs are kept all the same, by the products around it.
        """
        cost = self.operator.cost
        if cost.saved_attention_bytes:
            return self.operator.items * cost.saved_attention_bytes
        sums = sum(item.queries * item.heads * item.count for item in cost.attentions)
        return self.operator.items * min(BYTES_PER_SUM * sums, cost.saved_bytes)

    @property
    def sends_gradient(self) -> bool:
        """Whether its consumer sends a gradient back: it or something before it trains."""
        return self.backward is not Backward.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEdge:
    """A data flow from the last operator of one MetaOp to the first of another."""

    source: str
    target: str
    bytes: float
    gradient: bool


def expected_metaops(
    workload: Workload, *, counts_contexts: bool = True
) -> dict[str, ExpectedMetaOp]:
    """Give the MetaOps of a workload by id, predecessors before successors."""
    operators = operator_graph(workload)
    blocks = _blocks(operators)
    graph = _block_graph(operators)
    frozen = {module.name: module.frozen for module in workload.modules}
    found: dict[str, ExpectedMetaOp] = {}
    trained: set[str] = set()  # the MetaOps that train or follow one that does
    for name in nx.topological_sort(graph):
        nodes = blocks[name]
        before = [found[other] for other in sorted(graph.predecessors(name))]
        after_trained = any(other.id in trained for other in before)
        is_frozen = frozen[nodes[0].module]
        trains = not is_frozen and _has_weight(nodes[0].operator)
        if after_trained or trains:
            trained.add(name)
        context_bytes = counts_contexts * nodes[0].context_bytes
        context_bytes *= nodes[0].items * nodes[0].batch_size
        found[name] = ExpectedMetaOp(
            id=name,
            operator=nodes[0],
            num_ops=len(nodes),
            frozen=is_frozen,
            backward=_backward(
                after_trained=after_trained, trains=trains, frozen=is_frozen, num_ops=len(nodes)
            ),
            level=1 + max((other.level for other in before), default=-1),
            predecessors=tuple(other.id for other in before),
            input_bytes=sum(_handed_bytes(other, nodes[0], context_bytes) for other in before),
            output_bytes=nodes[0].cost.output_bytes * nodes[0].items * nodes[0].batch_size,
            context_bytes=context_bytes,
        )
    return found


def expected_edges(metaops: dict[str, ExpectedMetaOp]) -> tuple[ExpectedEdge, ...]:
    """Give the data flows between MetaOps."""
    return tuple(
        ExpectedEdge(
            source=source,
            target=metaop.id,
            bytes=metaops[source].hands(metaop),
            gradient=metaops[source].sends_gradient,
        )
        for metaop in metaops.values()
        for source in metaop.predecessors
    )


def _handed_bytes(source: ExpectedMetaOp, target: OperatorNode, context_bytes: float) -> float:
    same_use = (source.operator.task, source.operator.use) == (target.task, target.use)
    return source.output_bytes + (context_bytes if same_use else 0.0)


def _blocks(operators: "nx.DiGraph[str]") -> dict[str, list[OperatorNode]]:
    blocks: dict[str, list[OperatorNode]] = {}
    for name in operators:
        node: OperatorNode = operators.nodes[name]["operator"]
        blocks.setdefault(_block_of(node), []).append(node)
    return blocks


def _block_graph(operators: "nx.DiGraph[str]") -> "nx.DiGraph[str]":
    block_of = {name: _block_of(operators.nodes[name]["operator"]) for name in operators}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(block_of.values())
    graph.add_edges_from(
        (block_of[source], block_of[target])
        for source, target in operators.edges
        if block_of[source] != block_of[target]
    )
    return graph


def _block_of(node: OperatorNode) -> str:
    return f"{node.task}/{node.use}/{node.block}"


def _has_weight(operator: Operator) -> bool:
    # The weight of a tied projection belongs to another module, but its gradient starts here.
    return operator.parameters > 0 or (isinstance(operator, Projection) and operator.tied)


def _backward(*, after_trained: bool, trains: bool, frozen: bool, num_ops: int) -> Backward:
    if after_trained:
        return Backward.INPUT_ONLY if frozen else Backward.FULL
    if not trains:
        return Backward.NONE
    # The second operator on has trained operators before it: those of the MetaOp itself.
    return Backward.WEIGHT_ONLY if num_ops == 1 else Backward.FULL
