"""The seam within the engine: what computes slices and holds parameters, real or emulated."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch

from spindle_sim.plan import Slice

__all__ = ["GathersWithin", "Work"]


class Work(Protocol):
    """One rank's computation. Rows are (samples, elements); keys of mappings are flow indexes.

    Slices run a micro-batch at a time: 0 is the only one where a round isn't cut. A rank may have
    no samples of one: then it gets no rows, and owes none. Groups are those of the pool, or its
    buckets.
    """

    device: torch.device

    @property
    def row_dtype(self) -> torch.dtype:
        """The precision of activations between slices, and of their gradients."""
        ...

    def elements(self, flow: int) -> int:
        """Give the numbers that a flow has for one sample."""
        ...

    def prepare(self, step: int) -> None:
        """Get ready for an iteration, before its time is taken."""
        ...

    def forward(
        self, item: Slice, inputs: Mapping[int, torch.Tensor], micro_batch: int
    ) -> torch.Tensor | None:
        """Compute a slice; give the rows that all flows out of it carry."""
        ...

    def backward(
        self,
        item: Slice,
        gradients: Mapping[int, torch.Tensor],
        micro_batch: int,
        watched: Mapping[int, Callable[[], None]],
    ) -> Mapping[int, torch.Tensor]:
        """Give the gradient of each input whose flow has one.

        `watched`, by group, may be called while it runs, once the group's gradients are complete
        but for sums over ranks.
        """
        ...

    def gradient(self, group: int) -> torch.Tensor:
        """Give the gradients of a group as one flat tensor, to be summed in place.

        With ZeRO-1 its length is a multiple of the group's ranks.
        """
        ...

    def take_gradient(self, group: int, total: torch.Tensor) -> None:
        """Put the summed gradients, or this rank's range, where the optimizer finds them.

        From ZeRO-2 on several times, to be added up.
        """
        ...

    def squared_norm(self) -> torch.Tensor:
        """Give this rank's part of the squared norm of all gradients, one number of float64."""
        ...

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients of this rank."""
        ...

    def step(self) -> None:
        """Step the optimizer and forget the gradients."""
        ...

    def gathering(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a group's flat parameters, and the copy of the range that this rank stepped.

        The ranges of all ranks, in ascending order, are to be put into the first.
        """
        ...

    def gathered(self, group: int) -> None:
        """All ranges of a group are there."""
        ...

    def drop(self, group: int) -> None:
        """Give up the ranges of others (ZeRO-3)."""
        ...

    def losses(self) -> dict[str, float]:
        """Give this rank's part of each task's loss in the last iteration."""
        ...

    def synchronize_device(self) -> None:
        """Wait until the device has done what it was given, so that a clock tells its time."""
        ...


@runtime_checkable
class GathersWithin(Protocol):
    """Work whose slices gather parameters as they come to them (ZeRO-3)."""

    def gather_with(self, come_to: Callable[[int | None], None]) -> None:
        """Take what the next forward or backward calls when it comes to an operator.

        They count from 0 in the order in which they are come to. Where it isn't called, all is
        gathered once the slice has computed.
        """
        ...
