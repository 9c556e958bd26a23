"""What a slice is told for one forward."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spindle_torch.collectives import Members
from spindle_torch.shapes import Site
from spindle_torch.tokens import TokenShards

__all__ = ["SliceCall", "Visits"]


@dataclass(slots=True, kw_only=True)
class Visits:
    """Has the parameters of operators there while they are needed, and the next one's on their way.

    `come_to` does what is to be done before an operator computes, on every rank alike (ZeRO-3).
    """

    come_to: Callable[[int | None], None] = lambda _: None

    def begin(self, number: int) -> None:
        """An operator computes now, forward or backward: that `number`, as they are come to."""
        self.come_to(number)

    def finish(self) -> None:
        """The slice's forward or backward is over."""
        self.come_to(None)
        self.come_to = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCall:
    """One forward of a slice: its samples, their data and targets, and whom it meets meanwhile.

    `visits`, if any, is told of each operator's forward and backward before it computes.
    With `tokens` activations between its operators are cut along the tokens: `cut_inputs` and
    `cut_output` tell whether what comes in and goes out is, too, or is whole on each rank.
    """

    site: Site
    first_op: int
    num_ops: int
    shard: int
    num_shards: int
    data: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    tensor: Members | None = None
    samples: Members | None = None
    recompute: bool = False
    selective: bool = False
    visits: Visits | None = None
    tokens: TokenShards | None = None
    cut_inputs: tuple[bool, ...] = ()
    cut_output: bool = False
    step: int = 0
    first_sample: int = 0
    last_sample: int = 0

    @property
    def ends_metaop(self) -> bool:
        """Whether the MetaOp's last operator is in it."""
        return self.first_op + self.num_ops == self.site.num_ops

    @property
    def num_samples(self) -> int:
        """How many samples this rank has of the batch or micro-batch, which may be none."""
        return self.last_sample - self.first_sample

    def is_whole_behind(self, index: int) -> bool:
        """Whether an operator leaves all tokens: what nothing but a loss follows."""
        return self.site.is_sink and index + 1 == self.site.num_ops
