"""A tiny workload made larger again, until its slices take long enough for a clock to tell.

Widths are multiplied, tokens too; batches, layers and numbers of heads stay. What fitted together
still does.
"""

from dataclasses import replace

from spindle_sim.workload.model import Block, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    ContrastiveLoss,
    Custom,
    Embedding,
    Operator,
    Projection,
    TransformerLayer,
)

__all__ = ["enlarged"]


def enlarged(workload: Workload, *, widths: int = 1, tokens: int = 1) -> Workload:
    """Give the workload with each width `widths` times as large, and `tokens` times the tokens.

    What has one token (a pooled feature) keeps it. A custom operator is left as it is.
    """
    return replace(
        workload,
        name=f"{workload.name}-x{widths}" if widths * tokens > 1 else workload.name,
        modules=tuple(_module(module, widths, tokens) for module in workload.modules),
        tasks=tuple(_task(task, tokens) for task in workload.tasks),
    )


def _module(module: Module, widths: int, tokens: int) -> Module:
    return replace(module, blocks=tuple(_block(block, widths, tokens) for block in module.blocks))


def _block(block: Block, widths: int, tokens: int) -> Block:
    own = None if block.tokens is None else _tokens(block.tokens, tokens)
    return replace(block, operator=_operator(block.operator, widths), tokens=own)


def _task(task: Task, tokens: int) -> Task:
    return replace(task, uses=tuple(_use(use, tokens) for use in task.uses))


def _use(use: ModuleUse, tokens: int) -> ModuleUse:
    return replace(
        use,
        tokens=_tokens(use.tokens, tokens),
        context_tokens=_tokens(use.context_tokens, tokens),
    )


def _tokens(count: int, factor: int) -> int:
    return count if count <= 1 else count * factor


def _operator(operator: Operator, widths: int) -> Operator:
    match operator:
        case TransformerLayer():
            context, head = operator.context_width, operator.head_width
            return replace(
                operator,
                width=operator.width * widths,
                head_width=None if head is None else head * widths,
                mlp_width=operator.mlp_width * widths,
                context_width=None if context is None else context * widths,
            )
        case Embedding():
            return replace(operator, width=operator.width * widths)
        case Projection():
            columns = operator.columns if operator.logits else operator.columns * widths
            return replace(
                operator,
                inner=operator.inner * widths,
                columns=columns,
                norm_width=operator.norm_width * widths,
            )
        case ContrastiveLoss():
            return replace(operator, width=operator.width * widths)
        case Custom():
            return operator
