"""Devices that always go together, told apart by one of them: what is done for many is done once.

Data-parallel and tensor-parallel ranks of a pipeline stage run the same slices at the same times.
"""

from collections.abc import Iterable, Sequence

__all__ = ["lanes"]


def lanes(groups: Sequence[Iterable[int]]) -> list[tuple[int, ...]]:
    """Give the representatives of each group of devices, in its order.

    Devices that are in the same groups are represented by the one that appears first.
    """
    members = [tuple(group) for group in groups]
    found: dict[int, list[int]] = {}
    for number, group in enumerate(members):
        for device in group:
            found.setdefault(device, []).append(number)
    first: dict[tuple[int, ...], int] = {}
    representative = {
        device: first.setdefault(tuple(numbers), device) for device, numbers in found.items()
    }
    return [tuple(dict.fromkeys(representative[d] for d in group)) for group in members]
