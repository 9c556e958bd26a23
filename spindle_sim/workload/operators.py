"""The kinds of operators: what each holds (parameters) and what it costs for a number of tokens.

Formulas: 4 d^2 + 2 d f parameters and 2 S (4 d^2 + k d f) + 4 S^2 d forward FLOP a transformer
layer, with k = 2, or 3 where the MLP is gated; saved activations 2 S (8 d + 2 f) + 4 h S bytes
(pre-norm, flash attention, bf16, no dropout), which equals what torch saves for an encoder layer.
Unfused attention with dropout keeps S d (34 + 5 h S / d) bytes (arXiv 2205.05198).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from spindle_sim.errors import InputError, Problem
from spindle_sim.workload.bounds import Count, Quantity, Size
from spindle_sim.workload.cost import Attention, Gemm, OperatorCost, Sharding, Variant

__all__ = ["ContrastiveLoss", "Custom", "Embedding", "Operator", "Projection", "TransformerLayer"]

BYTES_PER_ELEMENT = 2  # bf16
_SCORE_BYTES = 5.0  # kept of a score without flash attention


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerLayer:
    """A pre-norm transformer layer: self-attention, optional cross-attention, MLP.

    `key_value_heads` below `heads` is grouped-query attention; `gated` a three-matrix MLP
    (SwiGLU); `context_width` adds cross-attention over a context of that width. `attention` is one
    flash kernel, or unfused: products, softmax and dropout apart, as Megatron-LM had it until 2022.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["transformer_layer"] = "transformer_layer"
    width: Count
    heads: Count
    mlp_width: Count
    key_value_heads: Count | None = None
    head_width: Count | None = None
    gated: bool = False
    causal: bool = False
    attention: Literal["flash", "unfused"] = "flash"
    norm: Literal["layer", "rms"] = "layer"
    query_value_bias: bool = True
    key_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    context_width: Count | None = None
    extra_parameters: Size = 0  # what no field above counts (extra norms, learned key/value biases)

    def __post_init__(self) -> None:
        """Check that the heads divide the width and group evenly."""
        _refuse_below(
            1,
            width=self.width,
            heads=self.heads,
            mlp_width=self.mlp_width,
            key_value_heads=self.key_value_heads,
            head_width=self.head_width,
            context_width=self.context_width,
        )
        _refuse_below(0, extra_parameters=self.extra_parameters)
        if self.head_width is None and self.width % self.heads:
            raise InputError(
                Problem(
                    path="heads",
                    message=f"heads ({self.heads}) must divide width ({self.width}),"
                    " or head_width be given",
                )
            )
        if self.heads % self.num_key_value_heads:
            raise InputError(
                Problem(
                    path="key_value_heads",
                    message=f"key_value_heads ({self.key_value_heads}) must divide"
                    f" heads ({self.heads})",
                )
            )

    @property
    def num_key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def attention_width(self) -> int:
        """Width of queries over all heads."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def key_value_width(self) -> int:
        """Width of keys over all their heads."""
        return self.attention_width // self.heads * self.num_key_value_heads

    @property
    def parameters(self) -> int:
        """Parameters of one layer."""
        return self.sharded_parameters + self._replicated_parameters

    @property
    def sharded_parameters(self) -> int:
        """Parameters that tensor parallelism divides: the matrices and the column biases."""
        attention = self._attention_parameters(self.width)
        if self.context_width is not None:
            attention += self._attention_parameters(self.context_width)
        mlp = (3 if self.gated else 2) * self.width * self.mlp_width
        if self.mlp_bias:
            mlp += self.mlp_width * (2 if self.gated else 1)
        return attention + mlp

    @property
    def _replicated_parameters(self) -> int:
        attentions = 1 if self.context_width is None else 2
        norm = self.width * (2 if self.norm == "layer" else 1)
        bias = attentions * self.width * self.output_bias + self.width * self.mlp_bias
        return (attentions + 1) * norm + bias + self.extra_parameters

    def _attention_parameters(self, source_width: int) -> int:
        query, key = self.attention_width, self.key_value_width
        weights = 2 * self.width * query + 2 * source_width * key
        return weights + (query + key) * self.query_value_bias + key * self.key_bias

    def cost(self, *, tokens: int, context_tokens: int = 0, batch_size: int = 1) -> OperatorCost:
        """Give the cost of one sample of `tokens` tokens (and `context_tokens` to attend to)."""
        del batch_size
        d, f, q, kv = self.width, self.mlp_width, self.attention_width, self.key_value_width
        ups = 2 if self.gated else 1
        column, row = Sharding.COLUMN, Sharding.ROW
        gemms = [
            Gemm(rows=tokens, inner=d, columns=q + 2 * kv, sharding=column),
            Gemm(rows=tokens, inner=q, columns=d, sharding=row),
            Gemm(rows=tokens, inner=d, columns=f, count=ups, sharding=column),
            Gemm(rows=tokens, inner=f, columns=d, sharding=row),
        ]
        head_width = q // self.heads
        fused = self.attention == "flash"
        attentions = [
            Attention(
                queries=tokens,
                keys=tokens,
                heads=self.heads,
                head_width=head_width,
                causal=self.causal,
                fused=fused,
            )
        ]
        saved = tokens * (2 * q + 2 * kv + (4 * f if self.gated else 2 * f))
        if self.context_width is not None:
            gemms += [
                Gemm(rows=tokens, inner=d, columns=q, sharding=column),
                Gemm(
                    rows=context_tokens, inner=self.context_width, columns=2 * kv, sharding=column
                ),
                Gemm(rows=tokens, inner=q, columns=d, sharding=row),
            ]
            attentions.append(
                Attention(
                    queries=tokens,
                    keys=context_tokens,
                    heads=self.heads,
                    head_width=head_width,
                    fused=fused,
                )
            )
            saved += tokens * 2 * q + context_tokens * 2 * kv
        blocks = len(attentions) + 1
        # Read and write: two passes for each norm, two for each residual, three for the MLP's
        # activation (fused kernels, every tensor crosses HBM once each way).
        replicated = float(BYTES_PER_ELEMENT * tokens * 5 * blocks * d)
        output = BYTES_PER_ELEMENT * tokens * d
        masks, scores_bytes = 0, 4.0 * len(attentions) * self.heads * tokens
        if not fused:  # dropout's masks (1 byte); softmax, dropped-out weights and their mask
            masks = blocks * tokens * d
            scores_bytes = sum(_SCORE_BYTES * item.scores for item in attentions)
        return OperatorCost(
            gemms=tuple(gemms),
            attentions=tuple(attentions),
            traffic_bytes=replicated + BYTES_PER_ELEMENT * tokens * 3 * f * ups + masks,
            replicated_traffic_bytes=replicated + masks,
            kernels=(
                (16 if self.gated else 14)
                + (8 if self.context_width is not None else 0)
                + (0 if fused else 6 * len(attentions))
            ),
            output_bytes=float(output),
            saved_bytes=BYTES_PER_ELEMENT * saved + scores_bytes,
            saved_replicated_bytes=float(2 * blocks * output + masks),
            saved_attention_bytes=scores_bytes,
            reduced_bytes=float(blocks * output),
            reductions=blocks,
        )


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
        _refuse_below(1, vocabulary=self.vocabulary, width=self.width)
        _refuse_below(0, extra_parameters=self.extra_parameters)

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
        _refuse_below(1, inner=self.inner, columns=self.columns)
        _refuse_below(0, norm_width=self.norm_width, extra_parameters=self.extra_parameters)

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
        _refuse_below(1, width=self.width)
        _refuse_below(0, extra_parameters=self.extra_parameters)

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
        _refuse_below(
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


def _refuse_below(least: int, **figures: float | None) -> None:
    problems = [
        Problem(path=name, message=f"must be a number of at least {least}, not {figure}")
        for name, figure in figures.items()
        if figure is not None and not least <= figure < math.inf
    ]
    if problems:
        raise InputError(*problems)


Operator = TransformerLayer | Embedding | Projection | ContrastiveLoss | Custom
