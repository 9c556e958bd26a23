"""Recomputation: which operators keep only their inputs, so that activations fit the memory.

Of a MetaOp that is recomputed in part, the first operators are: a plan's slices then end at the
last of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from spindle_sim.estimate import activation_bytes
from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice, MetaNode

__all__ = ["free_on_cluster", "free_on_device", "kept_bytes", "split"]

# More than is short when a placement fails: what is placed later needs room too.
MARGIN = 1.5
LEAST_SHARE = 0.1


def kept_bytes(node: MetaNode, *, recomputed: int = 0) -> float:
    """Give what a MetaOp keeps until its backward, over all devices."""
    metaop = node.metaop
    again = recomputed * _op_bytes(node, recompute=True)
    kept = (metaop.num_ops - recomputed) * _op_bytes(node, recompute=False)
    context = activation_bytes(metaop, num_ops=0, dp=1)  # kept once, for all operators
    return again + kept + context


def free_on_cluster(
    context: Context, metaops: Sequence[str], short_bytes: float
) -> dict[str, int] | None:
    """Give how many operators of which MetaOps free that much over all devices; None: too few."""
    freed = {m: _freed_bytes(context.graph.nodes[m]) for m in metaops}
    chosen, missing_bytes = _choose(context, metaops, freed, short_bytes)
    return None if missing_bytes > 0 else chosen


def free_on_device(
    context: Context, metaops: Sequence[str], short_bytes: float, drafts: Sequence[DraftSlice]
) -> dict[str, int]:
    """Give all that is recomputed once a device's shortage is met; empty where nothing is left.

    `metaops` are those on the device. Each of them is taken to be there as in its largest draft.
    """
    freed = {}
    for metaop in metaops:
        own = max((d for d in drafts if d.metaop == metaop), key=lambda d: d.num_ops)
        freed[metaop] = _freed_bytes(
            context.graph.nodes[metaop], dp=own.num_devices // own.tp, tp=own.tp
        )
    wanted = max(
        MARGIN * short_bytes,
        LEAST_SHARE * sum(freed[m] * context.graph.nodes[m].metaop.num_ops for m in metaops),
    )
    chosen, _ = _choose(context, metaops, freed, wanted)
    return {**context.settings.recompute, **chosen} if chosen else {}


def split(drafts: Iterable[DraftSlice], recompute: Mapping[str, int]) -> tuple[DraftSlice, ...]:
    """Mark the drafts of recomputed operators; one that is recomputed in part becomes two."""
    found: list[tuple[tuple[int, int, int], DraftSlice]] = []
    for draft in drafts:
        end = recompute.get(draft.metaop, 0) - draft.first_op
        at = draft.round, draft.stage
        if 0 < end < draft.num_ops:
            later = replace(draft, first_op=draft.first_op + end, num_ops=draft.num_ops - end)
            found.append(((*at, 0), replace(draft, num_ops=end, recompute=True)))
            found.append(((*at, 1), later))
        else:
            found.append(((*at, 0), replace(draft, recompute=end > 0)))
    stages: dict[int, dict[tuple[int, int, int], int]] = {}
    for key in sorted({key for key, _ in found}):
        numbers = stages.setdefault(key[0], {})
        numbers[key] = len(numbers)
    placed = [replace(draft, stage=stages[key[0]][key]) for key, draft in found]
    return tuple(sorted(placed, key=lambda draft: (draft.round, draft.stage)))


def _choose(
    context: Context, metaops: Sequence[str], freed: Mapping[str, float], wanted_bytes: float
) -> tuple[dict[str, int], float]:
    """Give operators to recompute, in all, of MetaOps that change; and what is still missing."""
    chosen = {}
    for metaop in _order(context, metaops):
        if wanted_bytes <= 0:
            break
        begun = context.settings.recompute.get(metaop, 0)
        left = context.graph.nodes[metaop].metaop.num_ops - begun
        count = min(left, ceil(wanted_bytes / freed[metaop]))
        chosen[metaop] = begun + count
        wanted_bytes -= count * freed[metaop]
    return chosen, wanted_bytes


def _order(context: Context, metaops: Sequence[str]) -> list[str]:
    """Give MetaOps in the order in which recomputing them frees most bytes for its time."""

    def worth(metaop: str) -> float:
        curve = context.curve(metaop)
        seconds = curve.forward_s(min(context.times_s(metaop)))
        return _freed_bytes(context.graph.nodes[metaop]) / max(seconds, 1e-12)

    done = context.settings.recompute
    left = [m for m in metaops if done.get(m, 0) < context.graph.nodes[m].metaop.num_ops]
    return sorted((m for m in left if worth(m) > 0), key=lambda m: (-worth(m), m))


def _freed_bytes(node: MetaNode, *, dp: int = 1, tp: int = 1) -> float:
    return _op_bytes(node, recompute=False, dp=dp, tp=tp) - _op_bytes(
        node, recompute=True, dp=dp, tp=tp
    )


def _op_bytes(node: MetaNode, *, recompute: bool, dp: int = 1, tp: int = 1) -> float:
    """Give what one operator more keeps on one device."""
    one, two = (
        activation_bytes(node.metaop, num_ops=count, dp=dp, tp=tp, recompute=recompute, first_op=1)
        for count in (1, 2)
    )
    return two - one
