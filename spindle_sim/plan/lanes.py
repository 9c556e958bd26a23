"""Devices that always go together, told apart by one of them: what is done for many is done once.

Data-parallel and tensor-parallel ranks of a pipeline stage run the same slices at the same times.
"""

from collections.abc import Iterable, Sequence

__all__ = ["lanes", "leaders"]


def leaders(groups: Iterable[Iterable[int]]) -> dict[int, int]:
    """Give for each device the one that stands for it: the first of those in the same groups."""
    found: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for device in group:
            found.setdefault(device, []).append(number)
    first: dict[tuple[int, ...], int] = {}
    return {device: first.setdefault(tuple(numbers), device) for device, numbers in found.items()}


def lanes(groups: Sequence[Iterable[int]]) -> list[tuple[int, ...]]:
    """Give those who stand for each group's devices, in its order."""
    leader = leaders(groups)
    return [tuple(dict.fromkeys(leader[device] for device in group)) for group in groups]
