"""What one operator costs on one sample: products, attention, memory traffic, kernels, bytes kept.

Device-free: how long it takes on a GPU is the estimator's business (`spindle_sim.estimate`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from spindle_sim.errors import InputError
from spindle_sim.workload.bounds import Count, Quantity, Size

__all__ = ["BYTES_PER_ELEMENT", "Attention", "Gemm", "OperatorCost", "Sharding", "Variant"]

BYTES_PER_ELEMENT = 2  # bf16


class Sharding(StrEnum):
    """How tensor parallelism splits the weight of a matrix product."""

    NONE = "none"  # every rank computes it whole
    COLUMN = "column"  # the output width is divided
    ROW = "row"  # the inner width is divided, the output is summed over the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """`count` equal products (rows x inner) @ (inner x columns) for one sample.

    Rows of all samples of a device are computed together: b samples make one product of b * rows.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    rows: Size
    inner: Size
    columns: Size
    count: Size = 1
    sharding: Sharding = Sharding.NONE

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.rows, self.inner, self.columns, self.count) < 0:
            raise InputError("rows, inner, columns and count must not be negative")

    @property
    def flops(self) -> float:
        """FLOP for one sample, 2 per multiply-add."""
        return 2.0 * self.rows * self.inner * self.columns * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Scaled dot-product attention of one sample, without its projections.

    `causal` kernels skip half of the square; FLOP are counted in full, as most published model FLOP
    figures do. Without `fused` kernels the scores of the whole square go through memory.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    queries: Size
    keys: Size
    heads: Size
    head_width: Size
    causal: bool = False
    fused: bool = True
    count: Size = 1

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.queries, self.keys, self.heads, self.head_width, self.count) < 0:
            raise InputError("queries, keys, heads, head_width and count must not be negative")

    @property
    def flops(self) -> float:
        """FLOP for one sample: two products of queries x keys x (heads * head_width)."""
        return 4.0 * self.scores * self.head_width * self.count

    @property
    def scores(self) -> float:
        """Scores of one sample: one for each query, key and head."""
        return float(self.queries) * self.keys * self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """The forward cost of one operator on one sample; all sizes in bytes, bf16 activations.

    Backward costs follow from it: the gradient of the input and that of the weight cost one
    forward each in products.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    gemms: tuple[Gemm, ...] = ()
    attentions: tuple[Attention, ...] = ()
    traffic_bytes: Quantity = 0.0  # memory traffic of everything that is no product or attention
    replicated_traffic_bytes: Quantity = 0.0  # of it: what tensor parallelism doesn't divide
    kernels: Size = 1  # kernels launched by one forward, whatever the batch
    output_bytes: Quantity = 0.0  # the data flow to the next operator
    saved_bytes: Quantity = 0.0  # kept for the backward, the part that tensor parallelism divides
    saved_attention_bytes: Quantity = 0.0  # of it: what an attention core alone keeps
    saved_replicated_bytes: Quantity = (
        0.0  # kept for the backward whole on each tensor-parallel rank
    )
    reduced_bytes: Quantity = 0.0  # all-reduced in the forward (again in the backward) where tp > 1
    reductions: Size = 0  # number of those all-reduces
    gathered_bytes: Quantity = 0.0  # all-gathered over the data-parallel ranks (coupled losses)

    @property
    def flops(self) -> float:
        """Model FLOP of one forward of one sample."""
        return sum(gemm.flops for gemm in self.gemms) + sum(a.flops for a in self.attentions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What an operator costs in a use of these tokens, where no formula tells it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    tokens: Count
    context_tokens: Size = 0
    cost: OperatorCost
