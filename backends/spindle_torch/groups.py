"""Process groups: made once, by all ranks in one order, each with a time limit of its own."""

from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from spindle_sim.plan import Plan
from spindle_torch.collectives import Members
from spindle_torch.compilation import collective_groups
from spindle_torch.pool import parameter_pool

__all__ = ["Groups", "make_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The process groups that the plan needs, by their ranks in ascending order."""

    rank: int
    by_ranks: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)

    def members(self, ranks: tuple[int, ...]) -> Members | None:
        """Give the group of these ranks as this rank sees it; None where it is alone."""
        if len(ranks) == 1:
            return None
        group = self.by_ranks[tuple(sorted(ranks))]
        return Members(group=group, ranks=ranks, position=ranks.index(self.rank))


def make_groups(
    plan: Plan,
    rank: int,
    device: torch.device,
    timeout_s: float,
    made: dict[tuple[int, ...], dist.ProcessGroup] | None = None,
) -> Groups:
    """Make every group that a slice or the pool needs; all ranks must call this at one point.

    Groups are made by members and others alike, in ascending order, as torch asks for. A group
    made here doesn't inherit the time limit of the first one. Each is used once in that order, as
    NCCL sets a group up at its first use. Those that are in `made` already, from other plans in
    the same processes, are taken from there, and new ones are put into it.
    """
    made = {} if made is None else made
    metaops = plan.metaop_by_id()
    wanted = {tuple(sorted(group.devices)) for group in parameter_pool(plan)}
    for item in plan.slices:
        wanted |= {tuple(sorted(ranks)) for ranks in collective_groups(item, metaops[item.metaop])}
    groups = Groups(rank=rank)
    warm = torch.zeros(1, device=device)
    dist.all_reduce(warm)
    for ranks in sorted(wanted):
        if len(ranks) == 1:
            continue
        if ranks not in made:
            made[ranks] = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
            if rank in ranks:
                dist.all_reduce(warm, group=made[ranks])
        if rank in ranks:
            groups.by_ranks[ranks] = made[ranks]
    return groups
