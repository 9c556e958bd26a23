"""Errors for a rank to have: each makes all ranks agree on gradients that are wrong."""

from typing import Any

import torch
import torch.distributed as dist

from spindle_sim.workload import ContrastiveLoss
from spindle_torch import collectives, model, synchronization
from spindle_torch.collectives import Members
from spindle_torch.intervals import own_span
from spindle_torch.layers import ContrastiveModule
from spindle_torch.model import SliceCall

__all__ = ["count_own_pairs", "count_own_samples", "keep_own_gradients", "lose_a_peer"]

RANKS_OF_LOSSES = 3


def count_own_pairs() -> None:
    """Divide a coupled loss by this rank's pairs, as if all had as many."""
    right = ContrastiveModule.forward

    def wrong(
        self: ContrastiveModule,
        first: torch.Tensor,
        second: torch.Tensor,
        samples: Members | None = None,
        batch: int | None = None,
    ) -> torch.Tensor:
        loss = right(self, first, second, samples, batch)
        assert samples is not None
        assert batch is not None
        return loss * batch / (len(first) * len(samples.ranks))

    ContrastiveModule.forward = wrong  # type: ignore[method-assign]


def count_own_samples() -> None:
    """Divide other losses by this rank's samples, as if all three had as many."""
    right = model._loss

    def wrong(call: SliceCall, output: torch.Tensor) -> torch.Tensor:
        loss = right(call, output)
        if isinstance(call.site.operator, ContrastiveLoss):
            return loss
        return loss * call.site.batch / (call.num_samples * RANKS_OF_LOSSES)

    model._loss = wrong


def keep_own_gradients() -> None:
    """Leave out what the loss of others gives the features that they got from here."""

    def wrong(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        members: Members = ctx.members
        first, last = own_span(ctx.batch, members.position, len(members.ranks))
        return gradient[first:last].contiguous(), None, None

    collectives._GatheredSamples.backward = staticmethod(wrong)  # type: ignore[method-assign]


def lose_a_peer() -> None:
    """Sum a group's gradients without those of its last rank."""
    right = collectives.begin_all_reduce

    def wrong(total: torch.Tensor, members: Members) -> dist.Work:
        if members.position == len(members.ranks) - 1:
            total.zero_()
        return right(total, members)

    synchronization.begin_all_reduce = wrong  # type: ignore[attr-defined]
