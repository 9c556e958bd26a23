"""MetaLevels (section 3.1): no MetaOp depends on another one of its level.

The level is the longest path from a source. A plain breadth-first depth is the shortest one, and
can put an operator beside its own predecessor: in a -> b -> c with a -> c, both b and c get 1.
"""

from collections.abc import Mapping, Sequence

__all__ = ["metalevels"]


def metalevels(predecessors: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Give the MetaLevel of each node; the mapping's order must be topological."""
    levels: dict[str, int] = {}
    for node, before in predecessors.items():
        levels[node] = 1 + max((levels[other] for other in before), default=-1)
    return levels
