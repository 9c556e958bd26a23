"""The MetaGraph G_M (section 3.1) and the drafts that the planner's steps hand on to each other."""

from dataclasses import dataclass

from spindle_sim.plan import MetaOp
from spindle_sim.workload import OperatorCost, OperatorNode

__all__ = ["DraftSlice", "MetaEdge", "MetaGraph", "MetaNode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaNode:
    """A MetaOp with one of its operators (they are all alike) and that operator's cost."""

    metaop: MetaOp
    operator: OperatorNode
    cost: OperatorCost


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaEdge:
    """A data flow between two MetaOps: `bytes` of the whole global batch."""

    source: str
    target: str
    bytes: float
    gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaGraph:
    """The contracted graph; nodes are in topological order."""

    nodes: dict[str, MetaNode]
    edges: tuple[MetaEdge, ...]

    @property
    def num_levels(self) -> int:
        """Number of MetaLevels."""
        return 1 + max(node.metaop.level for node in self.nodes.values())

    def level(self, index: int) -> tuple[MetaNode, ...]:
        """Give the MetaOps of one MetaLevel: no one depends on another."""
        return tuple(node for node in self.nodes.values() if node.metaop.level == index)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSlice:
    """A slice before placement: `num_devices` devices, not yet which (an ASL-tuple of a stage).

    `devices` is set where the strategy itself says which (seq, uniform, ...).
    """

    metaop: str
    first_op: int
    num_ops: int
    round: int
    stage: int
    num_devices: int
    tp: int = 1
    recompute: bool = False
    devices: tuple[int, ...] | None = None
