"""The operator kinds as modules of torch, whole or as one shard of tensor parallelism.

Activations are (rows, tokens, width) with a row for each sample and item. Parameter counts are
those of `workload/operators.py`. Column-parallel matrices come first, row-parallel ones second; a
block is left with one sum over the tensor-parallel ranks (`tensor` of the forwards, None for one).
With `shards` what lies between the blocks is cut along the tokens: a rank has its own in and out.
`token_wise` names parameters that are then used for these alone, so that gradients must be summed.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from spindle_sim.errors import InputError
from spindle_sim.workload import ContrastiveLoss, Embedding, Projection, TransformerLayer
from spindle_torch.collectives import Members, copied, gathered_columns, gathered_samples, reduced
from spindle_torch.drawing import Drawer
from spindle_torch.intervals import own_span
from spindle_torch.tokens import TokenShards

__all__ = [
    "ContrastiveModule",
    "EmbeddingModule",
    "LayerShards",
    "ProjectionModule",
    "TransformerModule",
]

_EXTRA_SCALE = 0.02
_TEMPERATURE = 0.07  # of contrastive losses, as CLIP begins


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShards:
    """Whom a layer shares tokens with, and how many there are in all, of its own and a context."""

    ranks: TokenShards
    tokens: int
    context_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """Where tensor-parallel ranks each do a part: how activations enter it and leave it."""

    tensor: Members | None
    shards: LayerShards | None

    def enter(self, rows: torch.Tensor) -> torch.Tensor:
        """Give all tokens; gradients of all ranks are summed."""
        if self.shards is None:
            return copied(rows, self.tensor)
        return self.shards.ranks.gathered(rows, self.shards.tokens)

    def enter_context(self, context: torch.Tensor) -> torch.Tensor:
        """Do so with what is attended to."""
        if self.shards is None:
            return copied(context, self.tensor)
        return self.shards.ranks.gathered(context, self.shards.context_tokens)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """Give the sum over all ranks, or this rank's tokens of it."""
        if self.shards is None:
            return reduced(partial, self.tensor)
        return self.shards.ranks.scattered(partial)


class TransformerModule(nn.Module):
    """A pre-norm transformer layer: self-attention, optional cross-attention, MLP."""

    def __init__(self, operator: TransformerLayer, drawer: Drawer) -> None:
        super().__init__()
        _check_divides(
            drawer,
            heads=operator.heads,
            key_value_heads=operator.num_key_value_heads,
            mlp_width=operator.mlp_width,
        )
        self.norm = _Norm(operator, drawer)
        self.attention = _Attention(operator, drawer, "attention", operator.width)
        self.cross_norm: _Norm | None = None
        self.cross_attention: _Attention | None = None
        if operator.context_width is not None:
            self.cross_norm = _Norm(operator, drawer)
            self.cross_attention = _Attention(
                operator, drawer, "cross_attention", operator.context_width
            )
        self.mlp_norm = _Norm(operator, drawer)
        self.mlp = _Mlp(operator, drawer)
        self.extra = _extra(operator.extra_parameters, drawer)
        self.causal = operator.causal
        self.token_wise = tuple(
            name
            for name, _ in self.named_parameters()
            if "norm" in name or name.endswith(("output_bias", "down_bias", "extra"))
        )

    def forward(
        self,
        rows: torch.Tensor,
        context: torch.Tensor | None = None,
        tensor: Members | None = None,
        *,
        shards: LayerShards | None = None,
        selective: bool = False,
    ) -> torch.Tensor:
        """Give the layer's output; with `selective` attention is computed again in the backward."""
        region = _Region(tensor=tensor, shards=shards)
        normed = region.enter(self.norm(rows))
        rows = rows + self.attention(
            normed, normed, causal=self.causal, region=region, selective=selective
        )
        if self.cross_attention is not None and self.cross_norm is not None:
            assert context is not None, "cross-attention without a context"
            rows = rows + self.cross_attention(
                region.enter(self.cross_norm(rows)),
                region.enter_context(context),
                causal=False,
                region=region,
                selective=selective,
            )
        rows = rows + self.mlp(region.enter(self.mlp_norm(rows)), region)
        return _with_extra(rows, self.extra, shards)


class EmbeddingModule(nn.Module):
    """A table lookup; the table is divided by rows."""

    def __init__(self, operator: Embedding, drawer: Drawer) -> None:
        super().__init__()
        _check_divides(drawer, vocabulary=operator.vocabulary)
        shape = (operator.vocabulary, operator.width)
        self.table = drawer.normal("table", shape, operator.width**-0.5, divided=0)
        self.extra = _extra(operator.extra_parameters, drawer)
        self.first_row = drawer.rank * operator.vocabulary // drawer.size
        self.token_wise = ("extra",) if self.extra is not None else ()

    def forward(
        self,
        token_ids: torch.Tensor,
        before: torch.Tensor | None = None,
        tensor: Members | None = None,
        *,
        shards: LayerShards | None = None,
    ) -> torch.Tensor:
        """Give the rows of (rows, tokens) ids, behind all tokens that are `before` them."""
        local = token_ids - self.first_row
        held = (local >= 0) & (local < self.table.shape[0])
        found = functional.embedding(local.clamp(0, self.table.shape[0] - 1), self.table)
        partial = found * held.unsqueeze(-1)
        if shards is not None and before is None:
            return _with_extra(shards.ranks.scattered(partial), self.extra, shards)
        text = reduced(partial, tensor)
        rows = text if before is None else torch.cat([before, text], dim=1)
        if shards is not None:
            rows = shards.ranks.cut(rows)
        return _with_extra(rows, self.extra, shards)


class ProjectionModule(nn.Module):
    """One matrix product, divided by columns; a tied one is given its matrix."""

    def __init__(self, operator: Projection, drawer: Drawer) -> None:
        super().__init__()
        _check_divides(drawer, columns=operator.columns)
        self.norm_weight: nn.Parameter | None = None
        self.norm_bias: nn.Parameter | None = None
        if operator.norm_width:
            if operator.norm_width != operator.inner:
                raise InputError(
                    f"{drawer.name}: norm_width is {operator.norm_width}, but what is normed has a"
                    f" width of {operator.inner}"
                )
            self.norm_weight = drawer.constant((operator.inner,), 1.0)
            self.norm_bias = drawer.constant((operator.inner,), 0.0)
        self.weight: nn.Parameter | None = None
        if not operator.tied:
            self.weight = drawer.normal(
                "weight", (operator.columns, operator.inner), operator.inner**-0.5, divided=0
            )
        self.bias = drawer.constant((operator.columns,), 0.0) if operator.bias else None
        self.extra = _extra(operator.extra_parameters, drawer)
        self.token_wise = ("norm_weight", "norm_bias") if operator.norm_width else ()

    def forward(
        self,
        rows: torch.Tensor,
        table: torch.Tensor | None = None,
        tensor: Members | None = None,
        *,
        shards: LayerShards | None = None,
    ) -> torch.Tensor:
        """Give rows times the matrix: its own, or the `table` that it is tied to.

        All tokens, with `shards` too: columns are gathered, and each rank has computed some.
        """
        weight = self.weight if table is None else table
        assert weight is not None, "a tied projection needs its table"
        if self.norm_weight is not None:
            width = (self.norm_weight.shape[0],)
            rows = functional.layer_norm(rows, width, self.norm_weight, self.norm_bias)
        entered = _Region(tensor=tensor, shards=shards).enter(rows)
        product = gathered_columns(functional.linear(entered, weight), tensor)
        if self.bias is not None:
            product = product + self.bias
        return _with_extra(product, self.extra)


class ContrastiveModule(nn.Module):
    """The symmetric cross-entropy of pairs against the whole batch."""

    def __init__(self, operator: ContrastiveLoss, drawer: Drawer) -> None:
        super().__init__()
        self.extra: nn.Parameter | None = None
        if operator.extra_parameters:
            count = (operator.extra_parameters,)
            self.extra = drawer.constant(count, math.log(1 / _TEMPERATURE))

    def forward(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        samples: Members | None = None,
        batch: int | None = None,
    ) -> torch.Tensor:
        """Give the sum over this rank's pairs, both ways, over twice their global number.

        Features are (pairs, width); each is compared with those of all ranks in `samples`. These
        share `batch` pairs, as many each if it isn't given; a rank may have none of them.
        """
        ranks = 1 if samples is None else len(samples.ranks)
        pairs = len(first) * ranks if batch is None or samples is None else batch
        first = functional.normalize(first, dim=-1)
        second = functional.normalize(second, dim=-1)
        others = gathered_samples(second, samples, pairs)
        all_others = gathered_samples(first, samples, pairs)
        scale = 1 / _TEMPERATURE if self.extra is None else self.extra[0].exp()
        begin = 0
        if samples is not None:
            begin, _ = own_span(pairs, samples.position, ranks)
        labels = torch.arange(begin, begin + len(first), device=first.device)
        total = functional.cross_entropy(scale * first @ others.T, labels, reduction="sum")
        total = total + functional.cross_entropy(
            scale * second @ all_others.T, labels, reduction="sum"
        )
        return total / (2 * pairs)


class _Norm(nn.Module):
    def __init__(self, operator: TransformerLayer, drawer: Drawer) -> None:
        super().__init__()
        self.weight = drawer.constant((operator.width,), 1.0)
        self.bias: nn.Parameter | None = None
        if operator.norm == "layer":
            self.bias = drawer.constant((operator.width,), 0.0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        width = (self.weight.shape[0],)
        if self.bias is None:
            return functional.rms_norm(rows, width, self.weight, 1e-5)
        return functional.layer_norm(rows, width, self.weight, self.bias)


class _Attention(nn.Module):
    """Attention of the layer's tokens to a source of some width; heads are divided."""

    def __init__(
        self, operator: TransformerLayer, drawer: Drawer, name: str, source_width: int
    ) -> None:
        super().__init__()
        width, queries, keys = operator.width, operator.attention_width, operator.key_value_width
        self.heads = operator.heads // drawer.size
        self.groups = operator.heads // operator.num_key_value_heads
        to_query, to_key = (queries, width), (keys, source_width)
        self.query = drawer.normal(f"{name}/query", to_query, width**-0.5, divided=0)
        self.key = drawer.normal(f"{name}/key", to_key, source_width**-0.5, divided=0)
        self.value = drawer.normal(f"{name}/value", to_key, source_width**-0.5, divided=0)
        self.output = drawer.normal(f"{name}/output", (width, queries), queries**-0.5, divided=1)
        biased = operator.query_value_bias
        self.query_bias = drawer.constant((queries,), 0.0, divided=0) if biased else None
        self.value_bias = drawer.constant((keys,), 0.0, divided=0) if biased else None
        self.key_bias = drawer.constant((keys,), 0.0, divided=0) if operator.key_bias else None
        self.output_bias = drawer.constant((width,), 0.0) if operator.output_bias else None

    def forward(
        self,
        rows: torch.Tensor,
        source: torch.Tensor,
        *,
        causal: bool,
        region: _Region | None = None,
        selective: bool = False,
    ) -> torch.Tensor:
        query = self._heads(functional.linear(rows, self.query, self.query_bias), self.heads)
        few = self.heads // self.groups
        key = self._heads(functional.linear(source, self.key, self.key_bias), few)
        value = self._heads(functional.linear(source, self.value, self.value_bias), few)
        if selective and torch.is_grad_enabled():
            mixed = checkpoint(self._core, query, key, value, causal=causal, use_reentrant=False)
        else:
            mixed = self._core(query, key, value, causal=causal)
        assert isinstance(mixed, torch.Tensor)
        joined = mixed.transpose(1, 2).flatten(2)
        total = functional.linear(joined, self.output)
        total = total if region is None else region.leave(total)
        return total if self.output_bias is None else total + self.output_bias

    def _core(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
    ) -> torch.Tensor:
        """Give what the scores mix: no parameters, and no random numbers."""
        if self.groups > 1:
            key = key.repeat_interleave(self.groups, dim=1)
            value = value.repeat_interleave(self.groups, dim=1)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    @staticmethod
    def _heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
        return projected.view(*projected.shape[:-1], heads, -1).transpose(1, 2)


class _Mlp(nn.Module):
    """Two matrices with GELU between them, or three with SiLU as a gate."""

    def __init__(self, operator: TransformerLayer, drawer: Drawer) -> None:
        super().__init__()
        width, inner = operator.width, operator.mlp_width
        self.up = drawer.normal("mlp/up", (inner, width), width**-0.5, divided=0)
        self.gate: nn.Parameter | None = None
        self.gate_bias: nn.Parameter | None = None
        if operator.gated:
            self.gate = drawer.normal("mlp/gate", (inner, width), width**-0.5, divided=0)
        self.down = drawer.normal("mlp/down", (width, inner), inner**-0.5, divided=1)
        self.up_bias: nn.Parameter | None = None
        self.down_bias: nn.Parameter | None = None
        if operator.mlp_bias:
            self.up_bias = drawer.constant((inner,), 0.0, divided=0)
            self.down_bias = drawer.constant((width,), 0.0)
            if operator.gated:
                self.gate_bias = drawer.constant((inner,), 0.0, divided=0)

    def forward(self, rows: torch.Tensor, region: _Region) -> torch.Tensor:
        hidden = functional.linear(rows, self.up, self.up_bias)
        if self.gate is None:
            hidden = functional.gelu(hidden)
        else:
            hidden = hidden * functional.silu(functional.linear(rows, self.gate, self.gate_bias))
        total = region.leave(functional.linear(hidden, self.down))
        return total if self.down_bias is None else total + self.down_bias


def _extra(count: int, drawer: Drawer) -> nn.Parameter | None:
    return drawer.normal("extra", (count,), _EXTRA_SCALE) if count else None


def _with_extra(
    rows: torch.Tensor, extra: torch.Tensor | None, shards: LayerShards | None = None
) -> torch.Tensor:
    """Add the extra parameters, whatever they stand for, over tokens and width, repeated."""
    if extra is None:
        return rows
    tokens, width = rows.shape[1:]
    first, last = 0, tokens
    if shards is not None:
        tokens = shards.tokens
        first, last = shards.ranks.span(tokens)
    grid = tokens * width
    repeated = extra.repeat(-(-grid // extra.numel()))[:grid]
    return rows + repeated.view(tokens, width)[first:last]


def _check_divides(drawer: Drawer, **counts: int) -> None:
    for name, count in counts.items():
        if count % drawer.size:
            raise InputError(
                f"{drawer.name}: {name} is {count}, which {drawer.size} tensor-parallel ranks can't"
                " divide; plan it with a smaller degree"
            )
