"""Communication by way of the CPU and gloo, with what is peculiar to NCCL.

Two ranks can't share a GPU under NCCL, and gloo sends nothing that lies on one. As under NCCL a
batch of messages is one piece of work, and nothing that was begun is there before it was waited
for: until then it is no number.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

__all__ = ["install"]

_Arrival = tuple[torch.Tensor, torch.Tensor]  # where it came to, and where it belongs


class _Late(dist.Work):
    """Works that are one; what arrives is put into its place when it is waited for."""

    def __init__(self, works: Sequence[dist.Work], arrivals: Sequence[_Arrival]) -> None:
        super().__init__()
        self.works, self.arrivals = list(works), list(arrivals)
        for _, tensor in arrivals:
            tensor.fill_(torch.nan)

    def wait(self, timeout: object = None) -> bool:
        del timeout
        for work in self.works:
            work.wait()
        for buffer, tensor in self.arrivals:
            tensor.copy_(buffer)
        self.works, self.arrivals = [], []
        return True


def install(patch: pytest.MonkeyPatch) -> None:
    """Have torch.distributed communicate so in this process."""
    _install_messages(patch)
    _install_sums(patch)
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    gather_single, gather = getattr(dist, name), dist.all_gather

    def all_gather_single(
        whole: torch.Tensor, own: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> dist.Work | None:
        buffer = _copy(whole)
        gather_single(buffer, _copy(own), group=group)
        return _end([(buffer, whole)], async_op)

    def all_gather(parts: list[torch.Tensor], own: torch.Tensor, group: Any = None) -> None:
        buffers = [_copy(part) for part in parts]
        gather(buffers, _copy(own), group=group)
        for buffer, part in zip(buffers, parts, strict=True):
            part.copy_(buffer)

    patch.setattr(dist, name, all_gather_single)
    patch.setattr(dist, "all_gather", all_gather)


def _install_messages(patch: pytest.MonkeyPatch) -> None:
    post = dist.batch_isend_irecv

    def batch_isend_irecv(operations: list[dist.P2POp]) -> list[dist.Work]:
        moved, arrivals = [], []
        for item in operations:
            assert item.tensor.is_contiguous()
            assert item.tensor.numel(), "NCCL is left out where there is nothing to send"
            buffer = _copy(item.tensor)
            moved.append(dist.P2POp(item.op, buffer, item.peer, item.group))
            if item.op is dist.irecv:
                arrivals.append((buffer, item.tensor))
        return [_Late(post(moved), arrivals)]

    patch.setattr(dist, "batch_isend_irecv", batch_isend_irecv)


def _install_sums(patch: pytest.MonkeyPatch) -> None:
    name = "reduce_scatter_single"
    name = name if hasattr(dist, name) else "reduce_scatter_tensor"
    scatter, reduce = getattr(dist, name), dist.all_reduce

    def reduce_scatter_single(
        own: torch.Tensor, whole: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> dist.Work | None:
        buffer = _copy(own)
        scatter(buffer, _copy(whole), group=group)
        return _end([(buffer, own)], async_op)

    def all_reduce(
        tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> dist.Work | None:
        buffer = _copy(tensor)
        reduce(buffer, group=group)
        return _end([(buffer, tensor)], async_op)

    patch.setattr(dist, name, reduce_scatter_single)
    patch.setattr(dist, "all_reduce", all_reduce)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _end(arrivals: Sequence[_Arrival], async_op: bool) -> dist.Work | None:
    work = _Late([], arrivals)
    if async_op:
        return work
    work.wait()
    return None
