"""Which device sends which samples to which when activations move from n to n' devices.

Data-parallel rank d of dp holds samples [d B / dp, (d + 1) B / dp), whole on each of its
tensor-parallel ranks (see `plan/model.py`). What a device already holds stays where it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Layout", "Piece", "concatenated", "reshard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a batch lies on devices: position d * tp + t holds the samples of rank d."""

    devices: tuple[int, ...]
    tp: int

    @property
    def dp(self) -> int:
        """Number of parts of the batch."""
        return len(self.devices) // self.tp


class Piece(NamedTuple):
    """Bytes that one device needs and one device gives; a copy where they are the same."""

    source: int
    target: int
    bytes: float

    @property
    def is_local(self) -> bool:
        """Whether nothing has to be sent."""
        return self.source == self.target


def reshard(source: Layout, target: Layout, size_bytes: float) -> tuple[Piece, ...]:
    """Give the pieces of `size_bytes` (the whole batch) that every device of `target` needs.

    Each pair of devices appears once, ordered by target and samples. A sample comes from the
    target's own memory if it is there, otherwise from the source's tensor-parallel rank of the same
    shard index, modulo the source's degree: from one rank only.
    """
    rank_of = {device: position // source.tp for position, device in enumerate(source.devices)}
    amounts: dict[tuple[int, int], float] = {}
    # In units of B / (dp * dp') every boundary is an integer.
    from_dp, to_dp = source.dp, target.dp
    unit_bytes = size_bytes / (from_dp * to_dp)
    for rank in range(to_dp):
        begin, end = rank * from_dp, (rank + 1) * from_dp
        receivers = target.devices[rank * target.tp : (rank + 1) * target.tp]
        for giver in range(begin // to_dp, -(-end // to_dp)):
            common = min(end, (giver + 1) * to_dp) - max(begin, giver * to_dp)
            for shard, receiver in enumerate(receivers):
                sender = source.devices[giver * source.tp + shard % source.tp]
                if rank_of.get(receiver) == giver:
                    sender = receiver
                key = sender, receiver
                amounts[key] = amounts.get(key, 0.0) + unit_bytes * common
    return tuple(Piece(*pair, amount) for pair, amount in amounts.items())


def concatenated(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Give the local pieces that are really copied: those put beside received ones.

    A device that needs nothing from others goes on with (a view of) the tensor it has.
    """
    receiving = {piece.target for piece in pieces if not piece.is_local}
    return tuple(piece for piece in pieces if piece.is_local and piece.target in receiving)
