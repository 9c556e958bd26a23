"""What ranks tell each other in words and numbers: JSON in tensors of bytes.

torch's collectives of objects send pickles, so that whoever reaches the network between hosts could
run code on all of them (docs/decisions/024-no-pickles-between-ranks.md). They go over torch's first
group, which is gloo's on GPUs, too (joining.py). All ranks must call these; none waits longer than
the process group's time limit.
"""

from typing import TypeVar

import torch
import torch.distributed as dist

from spindle_torch.encoding import from_json, to_json

__all__ = ["all_gather_json", "broadcast_json", "gather_json"]

_Value = TypeVar("_Value")


def all_gather_json(own: _Value, kind: type[_Value]) -> list[_Value]:
    """Give what each rank has, by rank."""
    content, sizes = _padded(own)
    parts = [torch.empty_like(content) for _ in sizes]
    dist.all_gather(parts, content)
    return [_read(part, size, kind) for part, size in zip(parts, sizes, strict=True)]


def gather_json(own: _Value, kind: type[_Value]) -> list[_Value] | None:
    """Give rank 0 what each rank has, by rank; the others None."""
    content, sizes = _padded(own)
    if dist.get_rank() != 0:
        dist.gather(content, dst=0)
        return None
    parts = [torch.empty_like(content) for _ in sizes]
    dist.gather(content, parts, dst=0)
    return [_read(part, size, kind) for part, size in zip(parts, sizes, strict=True)]


def broadcast_json(first: _Value | None, kind: type[_Value]) -> _Value:
    """Give every rank what rank 0 has; what the others bring isn't looked at."""
    content = _bytes(first)
    size = torch.tensor([len(content)])
    dist.broadcast(size, src=0)
    if dist.get_rank() != 0:
        content = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(content, src=0)
    return _read(content, int(size), kind)


def _padded(own: object) -> tuple[torch.Tensor, list[int]]:
    """Give the bytes of this rank, as long as the longest, and how many each rank has."""
    content = _bytes(own)
    size = torch.tensor([len(content)])
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    counts = [int(each) for each in sizes]
    padded = content.new_zeros(max(counts))
    padded[: len(content)] = content
    return padded, counts


def _bytes(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(to_json(value)), dtype=torch.uint8)


def _read(content: torch.Tensor, size: int, kind: type[_Value]) -> _Value:
    return from_json(content[:size].numpy().tobytes(), kind)
