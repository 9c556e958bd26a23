"""The tensors that pass between parts of a model, as rows of samples and back.

A value is one tensor of what a call of a leaf gave, or of what came into it. Its batch dimension
is the one that grows with the number of samples; what doesn't grow goes with every sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from spindle_sim.errors import InputError

__all__ = ["TensorShape", "Value", "merged_shape"]


class Value(NamedTuple):
    """Tensor `place` of a call's output, or of what enters the call."""

    call: int
    place: int
    enters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """A tensor of any number of samples; `sizes` are those of one sample.

    Dimension `batch` holds one sample behind the other, in `sizes[batch]` entries each; it is None
    where nothing grows with the samples.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    batch: int | None

    @property
    def elements(self) -> int:
        """Numbers in one sample."""
        return torch.Size(self.sizes).numel()

    def full_sizes(self, samples: int) -> tuple[int, ...]:
        """Give the sizes of so many samples."""
        return tuple(
            size * samples if index == self.batch else size for index, size in enumerate(self.sizes)
        )

    def pack(self, tensor: torch.Tensor, samples: int) -> torch.Tensor:
        """Give (samples, elements)."""
        if self.batch is None:
            return tensor.reshape(1, self.elements).expand(samples, -1)
        return tensor.movedim(self.batch, 0).reshape(samples, self.elements)

    def unpack(self, rows: torch.Tensor) -> torch.Tensor:
        """Give the tensor back: its dtype, where it isn't of floating point."""
        samples = len(rows)
        if self.batch is None:
            # Each rank uses its first row, so that its gradients add up at the origin.
            tensor = rows[0].reshape(self.sizes)
        else:
            moved = list(self.full_sizes(samples))
            moved.insert(0, moved.pop(self.batch))
            tensor = rows.reshape(moved).movedim(0, self.batch)
        return tensor if self.dtype.is_floating_point else tensor.to(self.dtype)

    def zeros(self, samples: int, like: torch.dtype, device: torch.device) -> torch.Tensor:
        """Give zeros of that shape, for what nothing that counts depends on."""
        dtype = like if self.dtype.is_floating_point else self.dtype
        return torch.zeros(self.full_sizes(samples), dtype=dtype, device=device)


def merged_shape(
    where: str, shapes: Sequence[torch.Size], dtype: torch.dtype, samples: Sequence[int]
) -> TensorShape:
    """Give what a tensor is for any number of samples, from what it was for two numbers.

    Raises:
        InputError: no one dimension grows with the samples, or the numbers are complex.
    """
    first, second = shapes
    if dtype.is_complex:
        raise InputError(
            f"{where}: complex numbers, which don't travel between devices; give"
            " torch.view_as_real(...) of them, or keep the module inside a larger one (`whole`)"
        )
    if len(first) == len(second):
        if samples[0] == samples[1]:  # one sample is all there is
            batch = 0 if first and first[0] == samples[0] else None
            return _shape(first, batch, samples[0], dtype)
        grown = [index for index in range(len(first)) if first[index] != second[index]]
        if not grown:
            return TensorShape(sizes=tuple(first), dtype=dtype, batch=None)
        place = grown[0]
        fits = first[place] * samples[1] == second[place] * samples[0]
        if len(grown) == 1 and fits and first[place] % samples[0] == 0:
            return _shape(first, place, samples[0], dtype)
    raise InputError(
        f"{where}: has the sizes {tuple(first)} for {samples[0]} samples and {tuple(second)} for"
        f" {samples[1]}; one dimension must be the samples and the others the same for all:"
        " pad them to one length, or add the module that gives it as a part of a larger one"
    )


def _shape(sizes: torch.Size, batch: int | None, samples: int, dtype: torch.dtype) -> TensorShape:
    each = tuple(size // samples if index == batch else size for index, size in enumerate(sizes))
    return TensorShape(sizes=each, dtype=dtype, batch=batch)
