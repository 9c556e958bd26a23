"""The kinds of operators: what each holds (parameters) and what it costs for a number of tokens.

Transformer layers have a file of their own (`transformer.py`).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from spindle_sim.errors import InputError, Problem
from spindle_sim.workload.bounds import Count, Quantity, Size, refuse_below
from spindle_sim.workload.cost import (
    BYTES_PER_ELEMENT,
    Attention,
    Gemm,
    OperatorCost,
    Sharding,
    Variant,
)
from spindle_sim.workload.transformer import TransformerLayer

__all__ = [
    "BYTES_PER_ELEMENT",
    "ContrastiveLoss",
    "Custom",
    "Embedding",
    "Operator",
    "Projection",
    "TransformerLayer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A table lookup; `extra_parameters` are positions, class tokens and the like."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["embedding"] = "embedding"
    vocabulary: Count
    width: Count
    extra_parameters: Size = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        refuse_below(1, vocabulary=self.vocabulary, width=self.width)
        refuse_below(0, extra_parameters=self.extra_parameters)

    @property
    def parameters(self) -> int:
        """Parameters of the table and the extras."""
        return self.sharded_parameters + self.extra_parameters

    @property
    def sharded_parameters(self) -> int:
        """The table, divided by vocabulary rows."""
        return self.vocabulary * self.width

    def cost(self, *, tokens: int, context_tokens: int = 0, batch_size: int = 1) -> OperatorCost:
        """Give the cost of looking up `tokens` rows."""
        del context_tokens, batch_size
        output = float(BYTES_PER_ELEMENT * tokens * self.width)
        return OperatorCost(
            traffic_bytes=2 * output,
            kernels=3,
            output_bytes=output,
            saved_replicated_bytes=8.0 * tokens,
            reduced_bytes=output,
            reductions=1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One matrix product: patch embedding, modality adapter, pooled head, vocabulary head.

    `logits` marks an output that feeds a cross-entropy: it is kept twice more, in float32.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["projection"] = "projection"
    inner: Count
    columns: Count
    bias: bool = False
    norm_width: Size = 0  # a LayerNorm over this width comes with it
    logits: bool = False
    tied: bool = False  # the weight belongs to another module and isn't counted here
    extra_parameters: Size = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        refuse_below(1, inner=self.inner, columns=self.columns)
        refuse_below(0, norm_width=self.norm_width, extra_parameters=self.extra_parameters)

    @property
    def parameters(self) -> int:
        """Parameters of the matrix, its bias and norm, and the extras."""
        bias = self.columns if self.bias else 0
        return self.sharded_parameters + bias + 2 * self.norm_width + self.extra_parameters

    @property
    def sharded_parameters(self) -> int:
        """The matrix, divided by columns."""
        return 0 if self.tied else self.inner * self.columns

    def cost(self, *, tokens: int, context_tokens: int = 0, batch_size: int = 1) -> OperatorCost:
        """Give the cost of `tokens` rows."""
        del context_tokens, batch_size
        output = float(BYTES_PER_ELEMENT * tokens * self.columns)
        source = float(BYTES_PER_ELEMENT * tokens * self.inner)
        return OperatorCost(
            gemms=(
                Gemm(rows=tokens, inner=self.inner, columns=self.columns, sharding=Sharding.COLUMN),
            ),
            traffic_bytes=2 * source * bool(self.norm_width) + (5 * output if self.logits else 0.0),
            kernels=2 + 2 * bool(self.norm_width) + 4 * self.logits,
            output_bytes=0.0 if self.logits else output,
            saved_bytes=5 * output if self.logits else 0.0,
            saved_replicated_bytes=source * (2 if self.norm_width else 1),
            reduced_bytes=0.0 if self.logits else output,
            reductions=0 if self.logits else 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveLoss:
    """A contrastive loss over pairs: each sample meets the whole batch, so the batch is coupled.

    Features of both modalities (`width` each) are gathered over the data-parallel ranks.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["contrastive_loss"] = "contrastive_loss"
    width: Count
    extra_parameters: Size = 0  # a learnable temperature

    def __post_init__(self) -> None:
        """Check the size."""
        refuse_below(1, width=self.width)
        refuse_below(0, extra_parameters=self.extra_parameters)

    @property
    def parameters(self) -> int:
        """The learnable temperature, if any."""
        return self.extra_parameters

    @property
    def sharded_parameters(self) -> int:
        """Nothing is divided."""
        return 0

    def cost(self, *, tokens: int, context_tokens: int = 0, batch_size: int = 1) -> OperatorCost:
        """Give the cost of one sample against a batch of `batch_size`."""
        del tokens, context_tokens
        return OperatorCost(
            gemms=(Gemm(rows=1, inner=self.width, columns=batch_size, count=2),),
            traffic_bytes=float(6 * 4 * batch_size),
            kernels=12,
            saved_replicated_bytes=float(2 * 4 * batch_size + 2 * 2 * self.width),
            gathered_bytes=float(2 * BYTES_PER_ELEMENT * self.width),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """An operator that no kind above describes, by its numbers for one sample.

    `variants` have the numbers of uses with other token counts, all with the same `parameters`;
    `tied_to` names parameter sets ("module/block") of which it uses the first operator's as well.
    Where it is `whole` tensor parallelism can't divide it.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["custom"] = "custom"
    name: str
    parameters: Size
    sharded_parameters: Size = 0
    gemms: tuple[Gemm, ...] = ()
    attentions: tuple[Attention, ...] = ()
    traffic_bytes: Quantity = 0.0
    kernels: Size = 4
    output_bytes: Quantity = 0.0
    saved_bytes: Quantity = 0.0
    batch_coupled_bytes: Quantity = 0.0
    variants: tuple[Variant, ...] = ()
    tied_to: tuple[str, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        """Check that nothing is negative."""
        refuse_below(
            0,
            parameters=self.parameters,
            sharded_parameters=self.sharded_parameters,
            traffic_bytes=self.traffic_bytes,
            kernels=self.kernels,
            output_bytes=self.output_bytes,
            saved_bytes=self.saved_bytes,
            batch_coupled_bytes=self.batch_coupled_bytes,
        )
        if self.sharded_parameters > self.parameters:
            raise InputError(
                Problem(
                    path="sharded_parameters",
                    message=f"{self.sharded_parameters} are more than all"
                    f" {self.parameters} parameters",
                )
            )

    def cost(self, *, tokens: int, context_tokens: int = 0, batch_size: int = 1) -> OperatorCost:
        """Give the stated numbers, or those of the variant with these tokens."""
        del batch_size
        for variant in self.variants:
            if (variant.tokens, variant.context_tokens) == (tokens, context_tokens):
                return variant.cost
        return OperatorCost(
            gemms=self.gemms,
            attentions=self.attentions,
            traffic_bytes=self.traffic_bytes,
            kernels=self.kernels,
            output_bytes=self.output_bytes,
            saved_replicated_bytes=self.saved_bytes,
            gathered_bytes=self.batch_coupled_bytes,
        )


Operator = TransformerLayer | Embedding | Projection | ContrastiveLoss | Custom
