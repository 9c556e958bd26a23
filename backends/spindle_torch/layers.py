"""The operator kinds as modules of torch, whole or as one shard of tensor parallelism.

Activations are (rows, tokens, width) with a row for each sample and item. Parameter counts are
those of `workload/operators.py`. Column-parallel matrices come first, row-parallel ones second; a
block is left with one sum over the tensor-parallel ranks (`tensor` of the forwards, None for one).
"""

import math

import torch
from torch import nn
from torch.nn import functional

from spindle_sim.errors import InputError
from spindle_sim.workload import ContrastiveLoss, Embedding, Projection, TransformerLayer
from spindle_torch.collectives import Members, copied, gathered_columns, gathered_samples, reduced
from spindle_torch.drawing import Drawer

__all__ = ["ContrastiveModule", "EmbeddingModule", "ProjectionModule", "TransformerModule"]

_EXTRA_SCALE = 0.02
_TEMPERATURE = 0.07  # of contrastive losses, as CLIP begins


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

    def forward(
        self,
        rows: torch.Tensor,
        context: torch.Tensor | None = None,
        tensor: Members | None = None,
    ) -> torch.Tensor:
        """Give the layer's output."""
        normed = copied(self.norm(rows), tensor)
        rows = rows + self.attention(normed, normed, causal=self.causal, tensor=tensor)
        if self.cross_attention is not None and self.cross_norm is not None:
            assert context is not None, "cross-attention without a context"
            normed = copied(self.cross_norm(rows), tensor)
            attended = copied(context, tensor)
            rows = rows + self.cross_attention(normed, attended, causal=False, tensor=tensor)
        rows = rows + self.mlp(copied(self.mlp_norm(rows), tensor), tensor)
        return _with_extra(rows, self.extra)


class EmbeddingModule(nn.Module):
    """A table lookup; the table is divided by rows."""

    def __init__(self, operator: Embedding, drawer: Drawer) -> None:
        super().__init__()
        _check_divides(drawer, vocabulary=operator.vocabulary)
        shape = (operator.vocabulary, operator.width)
        self.table = drawer.normal("table", shape, operator.width**-0.5, divided=0)
        self.extra = _extra(operator.extra_parameters, drawer)
        self.first_row = drawer.rank * operator.vocabulary // drawer.size

    def forward(
        self,
        token_ids: torch.Tensor,
        before: torch.Tensor | None = None,
        tensor: Members | None = None,
    ) -> torch.Tensor:
        """Give the rows of (rows, tokens) ids, behind the tokens that are `before` them."""
        local = token_ids - self.first_row
        held = (local >= 0) & (local < self.table.shape[0])
        found = functional.embedding(local.clamp(0, self.table.shape[0] - 1), self.table)
        text = reduced(found * held.unsqueeze(-1), tensor)
        rows = text if before is None else torch.cat([before, text], dim=1)
        return _with_extra(rows, self.extra)


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

    def forward(
        self,
        rows: torch.Tensor,
        table: torch.Tensor | None = None,
        tensor: Members | None = None,
    ) -> torch.Tensor:
        """Give rows times the matrix: its own, or the `table` that it is tied to."""
        weight = self.weight if table is None else table
        assert weight is not None, "a tied projection needs its table"
        if self.norm_weight is not None:
            width = (self.norm_weight.shape[0],)
            rows = functional.layer_norm(rows, width, self.norm_weight, self.norm_bias)
        product = gathered_columns(functional.linear(copied(rows, tensor), weight), tensor)
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
        self, first: torch.Tensor, second: torch.Tensor, samples: Members | None = None
    ) -> torch.Tensor:
        """Give the sum over this rank's pairs, both ways, over twice their global number.

        Features are (pairs, width); each is compared with those of all ranks in `samples`.
        """
        first = functional.normalize(first, dim=-1)
        second = functional.normalize(second, dim=-1)
        others, all_others = gathered_samples(second, samples), gathered_samples(first, samples)
        scale = 1 / _TEMPERATURE if self.extra is None else self.extra[0].exp()
        begin = 0 if samples is None else samples.position * first.shape[0]
        labels = torch.arange(begin, begin + first.shape[0], device=first.device)
        total = functional.cross_entropy(scale * first @ others.T, labels, reduction="sum")
        total = total + functional.cross_entropy(
            scale * second @ all_others.T, labels, reduction="sum"
        )
        return total / (2 * others.shape[0])


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
        self, rows: torch.Tensor, source: torch.Tensor, *, causal: bool, tensor: Members | None
    ) -> torch.Tensor:
        query = self._heads(functional.linear(rows, self.query, self.query_bias), self.heads)
        few = self.heads // self.groups
        key = self._heads(functional.linear(source, self.key, self.key_bias), few)
        value = self._heads(functional.linear(source, self.value, self.value_bias), few)
        if self.groups > 1:
            key = key.repeat_interleave(self.groups, dim=1)
            value = value.repeat_interleave(self.groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        joined = mixed.transpose(1, 2).flatten(2)
        total = reduced(functional.linear(joined, self.output), tensor)
        return total if self.output_bias is None else total + self.output_bias

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

    def forward(self, rows: torch.Tensor, tensor: Members | None) -> torch.Tensor:
        hidden = functional.linear(rows, self.up, self.up_bias)
        if self.gate is None:
            hidden = functional.gelu(hidden)
        else:
            hidden = hidden * functional.silu(functional.linear(rows, self.gate, self.gate_bias))
        total = reduced(functional.linear(hidden, self.down), tensor)
        return total if self.down_bias is None else total + self.down_bias


def _extra(count: int, drawer: Drawer) -> nn.Parameter | None:
    return drawer.normal("extra", (count,), _EXTRA_SCALE) if count else None


def _with_extra(rows: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
    """Add the extra parameters, whatever they stand for, over tokens and width, repeated."""
    if extra is None:
        return rows
    grid = rows.shape[1:].numel()
    repeated = extra.repeat(-(-grid // extra.numel()))[:grid]
    return rows + repeated.view(rows.shape[1:])


def _check_divides(drawer: Drawer, **counts: int) -> None:
    for name, count in counts.items():
        if count % drawer.size:
            raise InputError(
                f"{drawer.name}: {name} is {count}, which {drawer.size} tensor-parallel ranks can't"
                " divide; plan it with a smaller degree"
            )
