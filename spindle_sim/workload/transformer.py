"""A transformer layer: its parameters, and what it costs for a number of tokens.

Formulas: 4 d^2 + 2 d f parameters and 2 S (4 d^2 + k d f) + 4 S^2 d forward FLOP a transformer
layer, with k = 2, or 3 where the MLP is gated; saved activations 2 S (8 d + 2 f) + 4 h S bytes
(pre-norm, flash attention, bf16, no dropout), which equals what torch saves for an encoder layer.
Unfused attention with dropout keeps S d (34 + 5 h S / d) bytes (arXiv 2205.05198).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from spindle_sim.errors import InputError, Problem
from spindle_sim.workload.bounds import Count, Size, refuse_below
from spindle_sim.workload.cost import (
    BYTES_PER_ELEMENT,
    Attention,
    Gemm,
    OperatorCost,
    Sharding,
)

__all__ = ["TransformerLayer"]

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
        refuse_below(
            1,
            width=self.width,
            heads=self.heads,
            mlp_width=self.mlp_width,
            key_value_heads=self.key_value_heads,
            head_width=self.head_width,
            context_width=self.context_width,
        )
        refuse_below(0, extra_parameters=self.extra_parameters)
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
        fused = self.attention == "flash"
        attentions = [self._attention(tokens, tokens, causal=self.causal)]
        saved = tokens * (2 * q + 2 * kv + (4 * f if self.gated else 2 * f))
        if self.context_width is not None:
            gemms += [
                Gemm(rows=tokens, inner=d, columns=q, sharding=column),
                Gemm(
                    rows=context_tokens, inner=self.context_width, columns=2 * kv, sharding=column
                ),
                Gemm(rows=tokens, inner=q, columns=d, sharding=row),
            ]
            attentions.append(self._attention(tokens, context_tokens, causal=False))
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

    def _attention(self, queries: int, keys: int, *, causal: bool) -> Attention:
        return Attention(
            queries=queries,
            keys=keys,
            heads=self.heads,
            head_width=self.attention_width // self.heads,
            causal=causal,
            fused=self.attention == "flash",
        )
