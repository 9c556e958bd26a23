"""Cutting a task into the stages of a pipeline: whole operators, in the tasks' linear order."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from spindle_sim.planner.metagraph import MetaNode

__all__ = [
    "Piece",
    "balanced",
    "cut_stages",
    "is_stack",
    "most_stages",
    "recomputable",
    "stage_pieces",
]

_LAYER = "transformer_layer"
_TIES = 1e-9
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Operators [first_op, first_op + num_ops) of a MetaOp, recomputed or not."""

    metaop: str
    first_op: int
    num_ops: int
    recompute: bool


def most_stages(nodes: Sequence[MetaNode]) -> int:
    """Give the most stages that the task of these MetaOps can be cut into."""
    return len(_units(nodes, [0.0] * len(nodes)))


def is_stack(nodes: Sequence[MetaNode]) -> bool:
    """Tell whether the task has one run of transformer layers, which Megatron-LM cuts evenly."""
    return sum(node.metaop.kind == _LAYER for node in nodes) == 1


def cut_stages(
    nodes: Sequence[MetaNode], times_s: Sequence[float], num_stages: int
) -> tuple[int, ...]:
    """Give where stages begin and the last one ends, counted in operators of the linear order.

    One run of transformer layers is divided evenly where that is possible, as Megatron-LM does;
    anything else is cut so that the longest stage is as short as can be. `times_s` are those of
    one operator of each MetaOp.
    """
    counts = [node.metaop.num_ops for node in nodes]
    if is_stack(nodes):
        layers = next(index for index, node in enumerate(nodes) if node.metaop.kind == _LAYER)
        if counts[layers] % num_stages == 0:
            before, total = sum(counts[:layers]), sum(counts)
            size = counts[layers] // num_stages
            return (0, *(before + size * stage for stage in range(1, num_stages)), total)
    units = _units(nodes, times_s)
    ends = [0, *accumulate(count for _, count in units)]
    return tuple(ends[cut] for cut in balanced([time_s for time_s, _ in units], num_stages))


def _units(nodes: Sequence[MetaNode], times_s: Sequence[float]) -> list[tuple[float, int]]:
    """Give (seconds, operators) of what a cut can't divide.

    A cut is possible only where one operator feeds the next: a pipeline is a chain. Between the
    branches of a task it would let stages begin that no stage before them hands anything.
    """
    units: list[tuple[float, int]] = []
    for index, (node, time_s) in enumerate(zip(nodes, times_s, strict=True)):
        own = [(time_s, 1)] * node.metaop.num_ops
        if index and nodes[index - 1].metaop.id not in node.metaop.predecessors:
            last_s, count = units.pop()
            own[0] = last_s + time_s, count + 1
        units += own
    return units


def balanced(times_s: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Give the cuts of a sequence that make its longest part shortest; no part is empty.

    The bound on a part is bisected; for a bound, filling parts from the left needs fewest of them.
    """
    ends = [0.0, *accumulate(times_s)]
    low, high = max(max(times_s), ends[-1] / num_stages), ends[-1]
    best = _filled(ends, num_stages, high)
    assert best is not None, "the whole sequence fits into one part"
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        cuts = _filled(ends, num_stages, middle)
        if cuts is None:
            low = middle
        else:
            best = cuts
            high = min(middle, max(ends[end] - ends[begin] for begin, end in pairwise(cuts)))
    return best


def stage_pieces(
    nodes: Sequence[MetaNode],
    cuts: Sequence[int],
    *,
    recompute_ops: int | None,
    order: Sequence[int],
) -> tuple[tuple[Piece, ...], ...]:
    """Give the pieces of each stage; up to `recompute_ops` layers of each are recomputed.

    `order` says of which MetaOps first, by their places in `nodes`; of one, the first layers are.
    """
    starts = [0, *accumulate(node.metaop.num_ops for node in nodes)]
    stages: list[tuple[Piece, ...]] = []
    for begin, end in pairwise(cuts):
        left = end - begin if recompute_ops is None else recompute_ops
        found: dict[int, list[Piece]] = {}
        for index in order:
            node = nodes[index]
            first = max(begin - starts[index], 0)
            count = min(end - starts[index], node.metaop.num_ops) - first
            if count <= 0:
                continue
            again = min(left, count) if recomputable(node) else 0
            left -= again
            found[index] = [
                Piece(metaop=node.metaop.id, first_op=at, num_ops=size, recompute=recompute)
                for at, size, recompute in (
                    (first, again, True),
                    (first + again, count - again, False),
                )
                if size
            ]
        stages.append(tuple(piece for index in sorted(found) for piece in found[index]))
    return tuple(stages)


def recomputable(node: MetaNode) -> bool:
    """Tell whether full recomputation takes the operator: layers, and what nobody knows better."""
    return node.metaop.kind in (_LAYER, "custom") and not node.metaop.batch_coupled


def _filled(ends: Sequence[float], num_parts: int, bound: float) -> tuple[int, ...] | None:
    """Fill parts from the left up to a bound; None where they aren't enough."""
    count = len(ends) - 1
    cuts = [0]
    for part in range(1, num_parts + 1):
        begin = cuts[-1]
        reached = bisect_right(ends, (ends[begin] + bound) * (1 + _TIES)) - 1
        # What is left must do for one operator in each later part.
        cuts.append(max(begin + 1, min(reached, count - (num_parts - part))))
    return tuple(cuts) if cuts[-1] == count else None
