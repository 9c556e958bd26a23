"""Collectives with gradients inside a slice: tensor parallelism and coupled batches.

They run while a slice computes, on all ranks of one group alike, so that autograd's own order of
backwards is the same on each of them. And sums that are begun here and waited for elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function

from spindle_torch.intervals import own_span

__all__ = [
    "Members",
    "begin_all_gather",
    "begin_all_reduce",
    "begin_reduce_scatter",
    "copied",
    "gathered_columns",
    "gathered_samples",
    "reduced",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """A process group, its ranks in the slice's order, and which of them this one is."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    position: int

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Give the tensors of all members, equal in shape, in the slice's order."""
        own = tensor.contiguous()
        parts = own.new_empty((len(self.ranks), *own.shape))
        begin_all_gather(parts.view(-1), own.view(-1), self).wait()
        # A process group counts its ranks in ascending order, whatever the slice's order is.
        by_rank = dict(zip(sorted(self.ranks), parts.unbind(), strict=True))
        return [by_rank[rank] for rank in self.ranks]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give the sum over all members."""
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def scatter_sum(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Give the sum over all members of this one's part; parts are equal in shape."""
        by_rank = dict(zip(self.ranks, parts, strict=True))
        whole = torch.stack([by_rank[rank] for rank in sorted(self.ranks)])
        own = torch.empty_like(whole[0])
        begin_reduce_scatter(own.view(-1), whole.view(-1), self).wait()
        return own


def begin_all_gather(whole: torch.Tensor, own: torch.Tensor, members: Members) -> dist.Work:
    """Begin to put the members' tensors of one length one behind the other, in ascending order.

    Into one tensor: into a list NCCL gathers by way of another one, as large as all of it.
    """
    # Newer versions of torch warn of the older name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    pending = gather(whole, own, group=members.group, async_op=True)
    assert isinstance(pending, dist.Work), "this rank isn't in the group"
    return pending


def begin_all_reduce(total: torch.Tensor, members: Members) -> dist.Work:
    """Begin to sum a tensor over the members, in place."""
    pending = dist.all_reduce(total, group=members.group, async_op=True)
    assert isinstance(pending, dist.Work), "this rank isn't in the group"
    return pending


def begin_reduce_scatter(own: torch.Tensor, whole: torch.Tensor, members: Members) -> dist.Work:
    """Begin to sum a tensor over the members; `own` becomes this one's of its equal parts.

    Parts go to the ranks in ascending order.
    """
    # Newer versions of torch warn of the older name.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    pending = scatter(own, whole, group=members.group, async_op=True)
    assert isinstance(pending, dist.Work), "this rank isn't in the group"
    return pending


def copied(tensor: torch.Tensor, members: Members | None) -> torch.Tensor:
    """Give the tensor itself; its gradient is summed over the members."""
    return tensor if members is None else _apply(_Copied, tensor, members)


def reduced(tensor: torch.Tensor, members: Members | None) -> torch.Tensor:
    """Give the sum over the members; the gradient goes to each of them whole."""
    return tensor if members is None else _apply(_Reduced, tensor, members)


def gathered_columns(tensor: torch.Tensor, members: Members | None) -> torch.Tensor:
    """Give the members' last dimensions side by side, for a use that is equal on all of them."""
    return tensor if members is None else _apply(_GatheredColumns, tensor, members)


def gathered_samples(tensor: torch.Tensor, members: Members | None, batch: int) -> torch.Tensor:
    """Give the members' samples one behind the other; gradients of all uses of them are summed.

    Of the batch each member has its `own_span`, which may be none.
    """
    return tensor if members is None else _apply(_GatheredSamples, tensor, members, batch)


def _apply(
    function: type[Function], tensor: torch.Tensor, members: Members, *more: int
) -> torch.Tensor:
    result = function.apply(tensor, members, *more)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


class _Copied(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, members: Members) -> torch.Tensor:
        ctx.members = members
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.members.sum(gradient), None


class _Reduced(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, members: Members) -> torch.Tensor:
        del ctx
        return members.sum(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        del ctx
        return gradient, None


class _GatheredColumns(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, members: Members) -> torch.Tensor:
        ctx.members = members
        return torch.cat(members.gather(tensor), dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        members: Members = ctx.members
        return gradient.chunk(len(members.ranks), dim=-1)[members.position].contiguous(), None


class _GatheredSamples(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, members: Members, batch: int) -> torch.Tensor:
        ctx.members, ctx.batch = members, batch
        size = len(members.ranks)
        most = -(-batch // size)  # parts are filled up to be equal in shape
        filled = tensor
        if len(tensor) < most:
            filled = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        spans = (own_span(batch, position, size) for position in range(size))
        parts = zip(members.gather(filled), spans, strict=True)
        return torch.cat([part[: last - first] for part, (first, last) in parts])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        members: Members = ctx.members
        first, last = own_span(ctx.batch, members.position, len(members.ranks))
        return members.sum(gradient)[first:last].contiguous(), None, None
