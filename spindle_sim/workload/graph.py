"""The unified computation graph G = (V, E) of section 3: operators joined by data flows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from spindle_sim.workload.cost import OperatorCost
from spindle_sim.workload.model import Block, ModuleUse, Task, Workload
from spindle_sim.workload.operators import BYTES_PER_ELEMENT, Operator

__all__ = ["OperatorNode", "operator_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNode:
    """One operator of one task: a node of the graph.

    Two nodes of equal `signature` have the same workload (section 3.1, criterion 2).
    `context_bytes` is what comes with one item's activations for cross-attention: the context that
    this operator, or a later one of its use, attends to.
    """

    task: str
    use: str
    module: str
    block: str
    index: int  # position in the block: which operator's parameters it uses
    operator: Operator
    tokens: int
    context_tokens: int
    items: int
    batch_size: int
    context_bytes: float = 0.0

    @property
    def id(self) -> str:
        """Unique name: task/use/block/index."""
        return f"{self.task}/{self.use}/{self.block}/{self.index}"

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be equal for two operators to be contracted into one MetaOp.

        The module and block are part of it, so that a MetaOp's parameters are one run of one block.
        """
        return (
            self.task,
            self.module,
            self.block,
            self.operator,
            self.tokens,
            self.context_tokens,
            self.items,
            self.batch_size,
        )

    @property
    def cost(self) -> OperatorCost:
        """Forward cost of one item; a sample has `items` of them."""
        return self.operator.cost(
            tokens=self.tokens, context_tokens=self.context_tokens, batch_size=self.batch_size
        )


def operator_graph(workload: Workload) -> "nx.DiGraph[str]":
    """Build the graph of all tasks.

    Nodes are the operators' ids, with the `OperatorNode` as attribute `operator`; edges carry
    `bytes`, the flow of the whole global batch: the output, and within a use the context too.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    for task in workload.tasks:
        ends: dict[str, tuple[OperatorNode, OperatorNode]] = {}
        for use in task.uses:
            nodes = _nodes(workload, task, use)
            graph.add_nodes_from((node.id, {"operator": node}) for node in nodes)
            for source, target in pairwise(nodes):
                size_bytes = _flow_bytes(source, target.context_bytes)
                graph.add_edge(source.id, target.id, bytes=size_bytes)
            ends[use.name] = nodes[0], nodes[-1]
        for flow in task.flows:
            source, target = ends[flow.source][1], ends[flow.target][0]
            graph.add_edge(source.id, target.id, bytes=_flow_bytes(source))
    return graph


def _nodes(workload: Workload, task: Task, use: ModuleUse) -> list[OperatorNode]:
    blocks = workload.module(use.module).blocks
    return [
        OperatorNode(
            task=task.name,
            use=use.name,
            module=use.module,
            block=block.name,
            index=index,
            operator=block.operator,
            tokens=block.tokens or use.tokens,
            context_tokens=use.context_tokens,
            items=use.items,
            batch_size=task.batch_size,
            context_bytes=_context_bytes(use, blocks, number),
        )
        for number, block in enumerate(blocks)
        for index in range(block.repeat)
    ]


def _context_bytes(use: ModuleUse, blocks: Sequence[Block], number: int) -> float:
    """Give the bytes of one item's context, where a block attends to it from that number on."""
    widths = [getattr(block.operator, "context_width", None) for block in blocks]
    if not any(widths[number:]):
        return 0.0
    width = next(width for width in widths if width)
    return float(BYTES_PER_ELEMENT * use.context_tokens * width)


def _flow_bytes(source: OperatorNode, context_bytes: float = 0.0) -> float:
    return (source.cost.output_bytes + context_bytes) * source.items * source.batch_size
