"""Which samples go from which device to which when activations move from n to n' devices (3.6).

A batch is the interval [0, B) of samples; data-parallel rank d of dp holds [d B / dp, (d + 1) B /
dp), rounded down where dp doesn't divide B. A message is the intersection of what one device holds
and another needs, so that any n goes to any n'. No torch here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from spindle_sim.plan import Slice

__all__ = ["Piece", "held_samples", "own_span", "pieces"]


class Piece(NamedTuple):
    """Samples [first, last) that `target` needs and `source` gives; a copy if they are the same."""

    source: int
    target: int
    first: int
    last: int

    @property
    def is_local(self) -> bool:
        """Whether nothing has to be sent."""
        return self.source == self.target


def held_samples(item: Slice, device: int, batch: int) -> tuple[int, int]:
    """Give the samples [first, last) that a device of the slice computes."""
    return own_span(batch, item.devices.index(device) // item.tp, item.dp)


def own_span(count: int, position: int, size: int) -> tuple[int, int]:
    """Give the samples or tokens [first, last) of one of `size` ranks."""
    return position * count // size, (position + 1) * count // size


def pieces(source: Slice, target: Slice, batch: int) -> tuple[Piece, ...]:
    """Give what every device of `target` needs of a batch that lies on `source`.

    Ordered by target position, then by samples. A device takes what it holds from itself, else from
    one tensor-parallel rank of the source: that of its own index, modulo the source's degree. So
    what is cut along the tokens comes from who has the same tokens.
    """
    return tuple(
        piece
        for position, device in enumerate(target.devices)
        for piece in _needed(source, device, position % target.tp, target, batch)
    )


def _needed(source: Slice, device: int, shard: int, target: Slice, batch: int) -> Iterator[Piece]:
    begin, end = held_samples(target, device, batch)
    for rank in range(source.dp):
        held_begin, held_end = own_span(batch, rank, source.dp)
        first, last = max(begin, held_begin), min(end, held_end)
        if first < last:
            holders = source.devices[rank * source.tp : (rank + 1) * source.tp]
            giver = device if device in holders else holders[shard % source.tp]
            yield Piece(giver, device, first, last)
