"""Sequence parallelism: activations cut along the tokens between tensor-parallel regions.

A rank holds its own run of each sequence; what a region computes on is gathered before it, and what
its ranks have parts of is summed and cut again behind it. Degrees that don't divide the tokens are
fine: rank t of n holds [t T / n, (t + 1) T / n), rounded down, which may be none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional

from spindle_torch.collectives import Members
from spindle_torch.intervals import own_span

__all__ = ["TokenShards"]

_TOKENS = 1  # the dimension of (rows, tokens, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShards:
    """How the tensor-parallel ranks of a slice share tokens; tensors are (rows, tokens, width)."""

    members: Members

    def span(self, tokens: int) -> tuple[int, int]:
        """Give this rank's tokens [first, last) of so many."""
        return own_span(tokens, self.members.position, len(self.members.ranks))

    def count(self, tokens: int) -> int:
        """Give how many of the tokens this rank holds."""
        first, last = self.span(tokens)
        return last - first

    def gathered(self, own: torch.Tensor, tokens: int) -> torch.Tensor:
        """Give all tokens, for a region in which each rank does a part; gradients are summed."""
        return _apply(_Gathered, own, self.members, tokens)

    def scattered(self, partial: torch.Tensor) -> torch.Tensor:
        """Give this rank's tokens of the sum of what all ranks have."""
        return _apply(_Scattered, partial, self.members, partial.shape[_TOKENS])

    def replicated(self, own: torch.Tensor, tokens: int) -> torch.Tensor:
        """Give all tokens, for a use that is equal on all ranks."""
        return _apply(_Replicated, own, self.members, tokens)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """Give this rank's tokens of what is equal on all ranks; the gradient is whole again."""
        return _apply(_Cut, whole, self.members, whole.shape[_TOKENS])

    def summed(self, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
        """Give parameters that each rank uses for its own tokens alone; gradients are summed."""
        if not parameters:
            return []
        return list(_Summed.apply(self.members, *parameters))  # type: ignore[no-untyped-call]


def _apply(
    function: type[Function], tensor: torch.Tensor, members: Members, tokens: int
) -> torch.Tensor:
    result = function.apply(tensor, members, tokens)  # type: ignore[no-untyped-call]
    assert isinstance(result, torch.Tensor)
    return result


def _all_tokens(own: torch.Tensor, members: Members, tokens: int) -> torch.Tensor:
    size = len(members.ranks)
    spans = [own_span(tokens, position, size) for position in range(size)]
    parts = members.gather(_filled(own, _most(tokens, size)))
    return torch.cat(
        [
            part.narrow(_TOKENS, 0, last - first)
            for part, (first, last) in zip(parts, spans, strict=True)
        ],
        dim=_TOKENS,
    )


def _own_tokens(whole: torch.Tensor, members: Members) -> torch.Tensor:
    first, last = own_span(whole.shape[_TOKENS], members.position, len(members.ranks))
    return whole.narrow(_TOKENS, first, last - first).contiguous()


def _own_sum(partial: torch.Tensor, members: Members) -> torch.Tensor:
    tokens, size = partial.shape[_TOKENS], len(members.ranks)
    spans = [own_span(tokens, position, size) for position in range(size)]
    most = _most(tokens, size)
    parts = [_filled(partial.narrow(_TOKENS, first, last - first), most) for first, last in spans]
    first, last = spans[members.position]
    return members.scatter_sum(parts).narrow(_TOKENS, 0, last - first).contiguous()


def _most(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _filled(own: torch.Tensor, tokens: int) -> torch.Tensor:
    """Put zeros behind, so that the parts of all ranks are equal in shape."""
    missing = tokens - own.shape[_TOKENS]
    return functional.pad(own, (0, 0, 0, missing)) if missing else own


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, members: Members, tokens: int) -> torch.Tensor:
        ctx.members = members
        return _all_tokens(own, members, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _own_sum(gradient, ctx.members), None, None


class _Scattered(Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, members: Members, tokens: int) -> torch.Tensor:
        ctx.members, ctx.tokens = members, tokens
        return _own_sum(partial, members)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _all_tokens(gradient, ctx.members, ctx.tokens), None, None


class _Replicated(Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, members: Members, tokens: int) -> torch.Tensor:
        ctx.members = members
        return _all_tokens(own, members, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _own_tokens(gradient, ctx.members), None, None


class _Cut(Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, members: Members, tokens: int) -> torch.Tensor:
        ctx.members, ctx.tokens = members, tokens
        return _own_tokens(whole, members)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _all_tokens(gradient, ctx.members, ctx.tokens), None, None


class _Summed(Function):
    @staticmethod
    def forward(ctx: Any, members: Members, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.members = members
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # One message for all: they are small.
        total = ctx.members.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = total.split([gradient.numel() for gradient in gradients])
        return (
            None,
            *(part.view_as(one) for part, one in zip(parts, gradients, strict=True)),
        )
