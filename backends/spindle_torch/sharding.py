"""Who gathers and who scatters what around a slice, from ZeRO-2 on; pure, no torch.

Behind a backward all devices of a parameter group come for the sum of its gradients, of which each
keeps its range; those that don't run the slice add nothing. In ZeRO-3 they come before each
operator, too, to give the ranges of its parameters that they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.plan import Backward, Plan
from spindle_torch.buckets import Bucket
from spindle_torch.pool import used_operators
from spindle_torch.program import Gather, Launch

__all__ = ["ShardedSlice", "sharded_slices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSlice:
    """What the groups of a slice do for its forward and its backward, in order.

    Instructions are those of the slice's own devices; what belongs to others is never `within`.
    """

    forward: tuple[Gather | Launch, ...] = ()
    backward: tuple[Gather | Launch, ...] = ()


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
        steps: list[list[int]] = []  # groups that each operator uses
        for used in used_operators(plan, item):
            indexes = [index for key in used for index in holding.get(key, ())]
            shared = [
                index
                for index in dict.fromkeys(indexes)
                if len(buckets[index].group.devices) > 1
                and not own.isdisjoint(buckets[index].group.devices)
            ]
            steps.append(shared)
        trains = metaops[item.metaop].backward in (Backward.FULL, Backward.WEIGHT_ONLY)
        found[item.id] = ShardedSlice(
            forward=tuple(_gather(buckets, index) for step in steps for index in step)
            if plan.shard_parameters
            else (),
            backward=_backward(plan, buckets, steps, trains=trains),
        )
    return found


def _backward(
    plan: Plan, buckets: Sequence[Bucket], steps: Sequence[Sequence[int]], *, trains: bool
) -> tuple[Gather | Launch, ...]:
    """Go from the last operator to the first; a group's gradients leave behind its last use."""
    listed: list[Gather | Launch] = []
    for position in reversed(range(len(steps))):
        if plan.shard_parameters:
            listed += [_gather(buckets, index) for index in steps[position]]
        before = {index for step in steps[:position] for index in step}
        listed += [
            Launch(group=index, devices=buckets[index].group.devices, scatter=True, within=True)
            for index in steps[position]
            if trains and index not in before
        ]
    return tuple(listed)


def _gather(buckets: Sequence[Bucket], index: int) -> Gather:
    return Gather(group=index, devices=buckets[index].group.devices, within=True, lasts=False)
