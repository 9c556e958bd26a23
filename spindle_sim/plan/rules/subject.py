"""A plan under examination: its parts by id, and what its workload demands of them.

Built so that it exists for any plan, however wrong: the rules say what is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from spindle_sim.plan.model import Plan, Slice
from spindle_sim.plan.rules.expected import (
    ExpectedEdge,
    ExpectedMetaOp,
    expected_edges,
    expected_metaops,
)
from spindle_sim.plan.rules.holders import Shard, shard_holders

__all__ = ["RELATIVE_TOLERANCE", "Subject", "close", "examine", "order_key"]

RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The plan and its look-ups; `runs` has the slices of each known MetaOp, as they execute.

    A slice of an unknown MetaOp, or a second one of the same id, is in no look-up.
    """

    plan: Plan
    metaops: dict[str, ExpectedMetaOp]
    edges: tuple[ExpectedEdge, ...]
    slices: dict[str, Slice]
    runs: dict[str, tuple[Slice, ...]]
    on_device: dict[int, tuple[Slice, ...]]
    holders: dict[Shard, frozenset[int]]

    def joined_slices(self) -> Iterator[tuple[Slice, Slice, float, bool]]:
        """Give every (producer, consumer, bytes, gradient) that the data flows demand."""
        for name, run in self.runs.items():
            metaop = self.metaops[name]
            for source, target in pairwise(run):
                yield source, target, metaop.hands(metaop), metaop.sends_gradient
        for edge in self.edges:
            if edge.source in self.runs and edge.target in self.runs:
                source, target = self.runs[edge.source][-1], self.runs[edge.target][0]
                yield source, target, edge.bytes, edge.gradient


def examine(plan: Plan) -> Subject:
    """Give the plan with its look-ups."""
    # Plans of the first format leave contexts out.
    metaops = expected_metaops(plan.workload, counts_contexts=plan.format_version != "1.0")
    slices: dict[str, Slice] = {}
    runs: dict[str, list[Slice]] = {}
    on_device: dict[int, list[Slice]] = {}
    for item in sorted(plan.slices, key=order_key):
        if item.metaop not in metaops or item.id in slices:
            continue
        slices[item.id] = item
        runs.setdefault(item.metaop, []).append(item)
        for device in dict.fromkeys(item.devices):
            on_device.setdefault(device, []).append(item)
    return Subject(
        plan=plan,
        metaops=metaops,
        edges=expected_edges(metaops),
        slices=slices,
        runs={name: tuple(items) for name, items in runs.items()},
        on_device={device: tuple(items) for device, items in sorted(on_device.items())},
        holders=shard_holders(slices.values(), metaops),
    )


def order_key(item: Slice) -> tuple[int, int, float, int, str]:
    """Give the place of a slice in the order of execution (operators, then ids, break ties)."""
    return item.round, item.stage, item.start_s, item.first_op, item.id


def close(found: float, expected: float, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Tell whether two sizes or times are equal but for rounding."""
    return abs(found - expected) <= tolerance * max(abs(found), abs(expected))
