"""A workload shrunk until it runs on a laptop: the same tasks, modules and flows, small numbers.

Equal sizes stay equal and, as far as rounding allows, ordered, so that what fitted together still
does. A custom operator, whose computation nobody states, becomes a projection of its first inner
width to its last columns.
"""

import math
from dataclasses import replace

from spindle_sim.workload.model import Block, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    BYTES_PER_ELEMENT,
    ContrastiveLoss,
    Custom,
    Embedding,
    Operator,
    Projection,
    TransformerLayer,
)

__all__ = ["tiny"]

_VOCABULARY = 64
_HEADS = 4
_LAYERS = 4
_ITEMS = 2
_EXTRAS = 48
_TOKENS_FACTOR = 64


def tiny(workload: Workload) -> Workload:
    """Give the workload with widths of 16 to 64, up to 4 equal layers and batches of 4 to 16."""
    return replace(
        workload,
        name=f"{workload.name}-tiny",
        modules=tuple(_module(module) for module in workload.modules),
        tasks=tuple(_task(task) for task in workload.tasks),
        note=f"{workload.name} with small widths, few layers, short sequences and small batches",
    )


def _task(task: Task) -> Task:
    return replace(
        task,
        batch_size=max(4, min(16, task.batch_size // 32)),
        uses=tuple(_use(use) for use in task.uses),
    )


def _use(use: ModuleUse) -> ModuleUse:
    return replace(
        use,
        tokens=_tokens(use.tokens),
        context_tokens=_tokens(use.context_tokens) if use.context_tokens else 0,
        items=min(use.items, _ITEMS),
    )


def _module(module: Module) -> Module:
    return replace(module, blocks=tuple(_block(block) for block in module.blocks))


def _block(block: Block) -> Block:
    tokens = block.tokens
    if isinstance(block.operator, Custom) and tokens is None:
        # A resampler gives other tokens than its use has: its output says how many.
        columns = _columns(block.operator)
        tokens = round(block.operator.output_bytes / BYTES_PER_ELEMENT / columns) or None
    return replace(
        block,
        operator=_operator(block.operator),
        repeat=min(block.repeat, _LAYERS),
        tokens=None if tokens is None else _tokens(tokens),
    )


def _operator(operator: Operator) -> Operator:
    match operator:
        case TransformerLayer():
            context = operator.context_width
            grouped = operator.num_key_value_heads < operator.heads
            return replace(
                operator,
                width=_width(operator.width),
                heads=_HEADS,
                key_value_heads=_HEADS // 2 if grouped else None,
                head_width=None,
                mlp_width=2 * _width(operator.width),
                context_width=None if context is None else _width(context),
                extra_parameters=_extras(operator.extra_parameters),
            )
        case Embedding():
            return replace(
                operator,
                vocabulary=_VOCABULARY,
                width=_width(operator.width),
                extra_parameters=_extras(operator.extra_parameters),
            )
        case Projection():
            return replace(
                operator,
                inner=_width(operator.inner),
                columns=_VOCABULARY if operator.logits else _width(operator.columns),
                norm_width=_width(operator.norm_width) if operator.norm_width else 0,
                extra_parameters=_extras(operator.extra_parameters),
            )
        case ContrastiveLoss():
            return replace(operator, width=_width(operator.width))
        case Custom():
            inner = operator.gemms[0].inner if operator.gemms else _columns(operator)
            return Projection(inner=_width(inner), columns=_width(_columns(operator)), bias=True)


def _columns(custom: Custom) -> int:
    return custom.gemms[-1].columns if custom.gemms else _VOCABULARY


def _width(width: int) -> int:
    """Give a multiple of 8 that grows with the logarithm: 384 to 24, 1024 to 32, 4096 to 48."""
    return 8 * max(2, round(math.log2(max(width, 1))) - 6)


def _tokens(tokens: int) -> int:
    return 1 if tokens == 1 else max(2, round(tokens / _TOKENS_FACTOR))


def _extras(parameters: int) -> int:
    return min(parameters, _EXTRAS)
