"""Process groups: made once, by all ranks in one order, each with a time limit of its own."""

from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from spindle_sim.plan import Plan
from spindle_torch.collectives import Members
from spindle_torch.compilation import collective_groups
from spindle_torch.pool import parameter_pool

__all__ = ["GroupMaker", "Groups", "make_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The process groups that the plan needs, by their ranks in ascending order.

    Messages go over `world`, and so does what all ranks sum; None is torch's first group.
    """

    rank: int
    world: dist.ProcessGroup | None = None
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

    On GPUs they are NCCL's, and so is one of all ranks, for messages; the first group of torch is
    gloo's. Groups are made by members and others alike, in ascending order, as torch asks for. A
    group made here doesn't inherit the time limit of the first one. Those that are in `made`
    already, from other plans in the same processes, are taken from there, and new ones are put
    into it.
    """
    made = {} if made is None else made
    maker = GroupMaker(device=device, timeout=timedelta(seconds=timeout_s))
    world = maker.world(rank)
    metaops = plan.metaop_by_id()
    wanted = {tuple(sorted(group.devices)) for group in parameter_pool(plan)}
    for item in plan.slices:
        wanted |= {tuple(sorted(ranks)) for ranks in collective_groups(item, metaops[item.metaop])}
    groups = Groups(rank=rank, world=world)
    for ranks in sorted(wanted):
        if len(ranks) == 1:
            continue
        if ranks not in made:
            made[ranks] = maker.group(ranks, rank)
        if rank in ranks:
            groups.by_ranks[ranks] = made[ranks]
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMaker:
    """Makes groups on one kind of device.

    Each is used by all its members at once, one after the other: NCCL sets up at the first use, and
    messages between some of the ranks must not be that.
    """

    device: torch.device
    timeout: timedelta

    def world(self, rank: int) -> dist.ProcessGroup | None:
        """Give that of all ranks, or None where torch's first group is it."""
        if self.device.type == "cuda":
            return self.group(tuple(range(dist.get_world_size())), rank)
        self._use(None)
        return None

    def group(self, ranks: tuple[int, ...], rank: int) -> dist.ProcessGroup:
        """Give that of these ranks; `rank` is this one's, whether it is among them or not."""
        if self.device.type == "cuda":
            backend, device = "nccl", self.device
        else:
            backend, device = None, None
        group: dist.ProcessGroup = dist.new_group(
            list(ranks), timeout=self.timeout, backend=backend, device_id=device
        )
        if rank in ranks:
            self._use(group)
        return group

    def _use(self, group: dist.ProcessGroup | None) -> None:
        warm = torch.ones(1, device=self.device)
        dist.all_reduce(warm, group=group)
        warm.item()  # a GPU is waited for, so that no two groups set up at one time
