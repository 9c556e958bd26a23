"""Which groups a slice's operators use, and what they scatter, from ZeRO-2 on; pure, no torch.

Behind a backward all devices of a parameter group come for the sum of its gradients, of which each
keeps its range; those that don't run the slice add nothing. What comes before operators in ZeRO-3
is in `gathering.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.plan import Backward, Plan
from spindle_torch.buckets import Bucket
from spindle_torch.pool import used_operators

__all__ = ["ShardedSlice", "sharded_slices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSlice:
    """The groups of each operator of a slice that it shares with other devices, by index.

    `used` are all that it needs, `leaving` those whose gradients leave behind its backward.
    """

    used: tuple[tuple[int, ...], ...] = ()
    leaving: tuple[tuple[int, ...], ...] = ()


def sharded_slices(plan: Plan, buckets: Sequence[Bucket]) -> dict[str, ShardedSlice]:
    """Give what belongs to each slice; nothing before ZeRO-2."""
    if not plan.shard_gradients:
        return {item.id: ShardedSlice() for item in plan.slices}
    holding: dict[tuple[str, int], list[int]] = {}
    for index, bucket in enumerate(buckets):
        for held in {(key.parameter_set, key.index) for key in bucket.group.operators}:
            holding.setdefault(held, []).append(index)
    metaops = plan.metaop_by_id()
    found: dict[str, ShardedSlice] = {}
    for item in plan.slices:
        own = set(item.devices)
        steps: list[tuple[int, ...]] = []
        for used in used_operators(plan, item):
            indexes = [index for key in used for index in holding.get(key, ())]
            shared = [
                index
                for index in dict.fromkeys(indexes)
                if len(buckets[index].group.devices) > 1
                and not own.isdisjoint(buckets[index].group.devices)
            ]
            steps.append(tuple(shared))
        trains = metaops[item.metaop].backward in (Backward.FULL, Backward.WEIGHT_ONLY)
        found[item.id] = ShardedSlice(
            used=tuple(steps), leaving=_leaving(steps) if trains else tuple(() for _ in steps)
        )
    return found


def _leaving(steps: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Give what an operator of the slice is the first to use, so that its backward is the last."""
    before: set[int] = set()
    found: list[tuple[int, ...]] = []
    for step in steps:
        found.append(tuple(index for index in step if index not in before))
        before.update(step)
    return tuple(found)
