"""What flows into a slice and out of it: rows of samples taken apart, joined, and packed again.

Rows are (samples, elements). Within a slice activations are (samples, items, tokens, width); under
sequence parallelism a rank has its own tokens of each, in rows that come cut as well.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from spindle_sim.workload import Projection, TransformerLayer
from spindle_torch.calls import SliceCall
from spindle_torch.shapes import Activation
from spindle_torch.tokens import TokenShards

__all__ = ["enter", "fit_rows", "fit_tokens", "pack", "spread"]


def enter(
    call: SliceCall, inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Give the inputs of the first operator, and the context, if there is one.

    Under sequence parallelism the context is cut, and so is what goes into a transformer layer or
    a projection, already joined; other operators get all tokens of a MetaOp's inputs.
    """
    if call.tokens is not None:
        return _enter_cut(call, inputs, call.tokens)
    site = call.site
    if call.first_op:
        own, context = _unpack(inputs[0], site.passed)
        return [own], context
    own_inputs: list[torch.Tensor] = []
    context = None
    for index, (rows, shape) in enumerate(zip(inputs, site.inputs, strict=True)):
        item, carried = _unpack(rows, shape)
        context = carried if carried is not None else context
        item = _fit_items(item, site.items)
        if index == site.context_input:
            context = fit_tokens(item, site.context_tokens)
        else:
            own_inputs.append(item)
    return own_inputs, context


def pack(
    own: torch.Tensor, context: torch.Tensor | None, call: SliceCall, shape: Activation
) -> torch.Tensor:
    """Give the rows to hand on; all tokens unless they go where they are cut alike."""
    context = context if shape.context_tokens else None
    if call.tokens is not None and not call.cut_output:
        if not call.is_whole_behind(call.first_op + call.num_ops - 1):
            own = spread(call.tokens.replicated, own, shape.tokens)
        if context is not None:
            context = spread(call.tokens.replicated, context, shape.context_tokens)
    if not shape.context_tokens:
        return own.flatten(1)
    assert context is not None, "no context to hand on"
    return torch.cat([own.flatten(1), context.flatten(1)], dim=1)


def fit_tokens(item: torch.Tensor, tokens: int) -> torch.Tensor:
    """Average the tokens of (samples, items, tokens, width) over equal windows."""
    fitted = fit_rows(item.flatten(0, 1), tokens)
    return fitted.view(*item.shape[:2], tokens, item.shape[3])


def fit_rows(rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """Average the tokens of (rows, tokens, width) over equal windows, unless they are as many."""
    if rows.shape[1] == tokens:
        return rows
    return functional.adaptive_avg_pool1d(rows.transpose(1, 2), tokens).transpose(1, 2)


def spread(
    gather: Callable[[torch.Tensor, int], torch.Tensor], item: torch.Tensor, tokens: int
) -> torch.Tensor:
    """Give all tokens of (samples, items, tokens, width)."""
    rows = gather(item.flatten(0, 1), tokens)
    return rows.view(*item.shape[:2], *rows.shape[1:])


def _enter_cut(
    call: SliceCall, inputs: Sequence[torch.Tensor], tokens: TokenShards
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    site = call.site
    joins = isinstance(site.operator, TransformerLayer | Projection)
    context: torch.Tensor | None = None
    own: list[torch.Tensor] = []
    shapes = (site.passed,) if call.first_op else site.inputs
    alone = len(shapes) - (site.context_input is not None) == 1
    for index, (rows, shape) in enumerate(zip(inputs, shapes, strict=True)):
        is_cut = call.cut_inputs[index]
        item, carried = _unpack(rows, _held(shape, tokens) if is_cut else shape, like=shape)
        if carried is not None:
            context = carried if is_cut else _cut(carried, tokens)
        if call.first_op:
            return [item if is_cut else _cut(item, tokens)], context
        item = _fit_items(item, site.items)
        attended = index == site.context_input
        wanted = site.context_tokens if attended else site.tokens
        if is_cut and shape.tokens == wanted and (attended or (joins and alone)):
            fitted = item
        else:
            whole = spread(tokens.replicated, item, shape.tokens) if is_cut else item
            fitted = _cut(fit_tokens(whole, wanted), tokens) if attended else whole
            if joins and alone and not attended:
                fitted = _cut(fit_tokens(whole, wanted), tokens)
        if attended:
            context = fitted
        else:
            own.append(fitted)
    if joins and len(own) > 1:
        own = [_cut(fit_tokens(torch.cat(own, dim=2), site.tokens), tokens)]
    return own, context


def _held(shape: Activation, tokens: TokenShards) -> Activation:
    members = tokens.members
    return shape.cut(members.position, len(members.ranks))


def _cut(item: torch.Tensor, tokens: TokenShards) -> torch.Tensor:
    rows = tokens.cut(item.flatten(0, 1))
    return rows.view(*item.shape[:2], *rows.shape[1:])


def _unpack(
    rows: torch.Tensor, shape: Activation, like: Activation | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the activation of each sample, and the context behind it, if `like` has one."""
    size = shape.items * shape.tokens * shape.width
    own = rows[:, :size].reshape(len(rows), shape.items, shape.tokens, shape.width)
    if not (like or shape).context_tokens:
        return own, None
    sizes = len(rows), shape.items, shape.context_tokens, shape.context_width
    return own, rows[:, size:].reshape(sizes)


def _fit_items(item: torch.Tensor, items: int) -> torch.Tensor:
    if item.shape[1] == items:
        return item
    if items == 1:
        return item.mean(dim=1, keepdim=True)
    return item.expand(-1, items, -1, -1)
