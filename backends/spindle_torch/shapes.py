"""What flows into and out of every operator: shapes, and which input is attended to; no torch.

A workload says how many tokens an operator has and what flows where, not how inputs are joined.
Here: inputs are put one behind the other along the tokens, in the order of the flows; where they
are more or fewer than the operator's tokens, they are averaged over equal windows; an embedding
puts its own text behind them. Items are averaged where the next use has one. Of a use with
cross-attention the first input that is `context_tokens` long is the context, which travels with
the activations for as long as a later operator of the use attends to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spindle_sim.errors import InputError, Problem
from spindle_sim.plan import Plan
from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    Custom,
    Embedding,
    ModuleUse,
    Operator,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)
from spindle_torch.intervals import own_span

__all__ = ["Activation", "CustomShape", "Site", "flow_shape", "sites"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The shape of one sample of what flows: items x tokens x width, and a context's."""

    items: int
    tokens: int
    width: int
    context_tokens: int = 0
    context_width: int = 0

    @property
    def elements(self) -> int:
        """Numbers in one sample."""
        own = self.tokens * self.width
        return self.items * (own + self.context_tokens * self.context_width)

    def cut(self, position: int, size: int) -> "Activation":
        """Give what one of `size` ranks has of it under sequence parallelism."""
        spans = [own_span(tokens, position, size) for tokens in (self.tokens, self.context_tokens)]
        own, context = (last - first for first, last in spans)
        return replace(self, tokens=own, context_tokens=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomShape:
    """What a user's module takes and gives for one item: tokens x width."""

    input_tokens: int
    input_width: int
    output_tokens: int
    output_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One MetaOp: an operator in the place where a task uses it.

    `inputs` are those of its first operator; the other operators take one `passed`. `output` is
    that of its last one, None where nothing may flow out of it (a loss, logits). `data_tokens` are
    the tokens that come from the task's data: all where nothing flows in.
    """

    metaop: str
    task: str
    use: str
    parameter_set: str
    operator: Operator
    num_ops: int
    batch: int
    items: int
    tokens: int
    context_tokens: int
    inputs: tuple[Activation, ...]
    sources: tuple[str, ...]  # MetaOps, in the order of `inputs`
    context_input: int | None
    passed: Activation
    output: Activation | None
    data_tokens: int
    is_sink: bool


def sites(workload: Workload, custom: Mapping[str, CustomShape] | None = None) -> dict[str, Site]:
    """Give the site of every MetaOp, by id; `custom` by parameter set ("module/block").

    Raises:
        InputError: inputs don't fit the operators that they flow into, or a custom operator has no
            module; every such place is named.
    """
    found: dict[str, Site] = {}
    problems: list[Problem] = []
    for task in workload.tasks:
        for use in _in_order(task):
            try:
                for site in _use_sites(workload, task, use, found, custom or {}):
                    found[site.metaop] = site
            except InputError as error:
                problems += error.problems
                break  # what comes after it in this task can't be known
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return found


def flow_shape(
    plan: Plan, found: Mapping[str, Site], index: int, rank: int, *, is_cut: bool
) -> Activation:
    """Give the shape of a sample of a flow, of what lies on this rank of it where it `is_cut`."""
    slices, flow = plan.slice_by_id(), plan.flows[index]
    source, target = slices[flow.source_slice], slices[flow.target_slice]
    site = found[source.metaop]
    ends = source.first_op + source.num_ops == site.num_ops
    shape = site.output if ends else site.passed
    assert shape is not None, f"{source.id} is a loss, and something flows out of it"
    for item in (source, target):
        if is_cut and rank in item.devices:
            return shape.cut(item.devices.index(rank) % item.tp, item.tp)
    return shape


def _in_order(task: Task) -> list[ModuleUse]:
    ordered: list[ModuleUse] = []
    waiting = list(task.uses)
    while waiting:
        done = {use.name for use in ordered}
        use = next(
            use
            for use in waiting
            if all(flow.source in done for flow in task.flows if flow.target == use.name)
        )
        waiting.remove(use)
        ordered.append(use)
    return ordered


def _use_sites(
    workload: Workload,
    task: Task,
    use: ModuleUse,
    found: Mapping[str, Site],
    custom: Mapping[str, CustomShape],
) -> list[Site]:
    blocks = workload.module(use.module).blocks
    flows = [flow for flow in task.flows if flow.target == use.name]
    sources = [_last_metaop(workload, task, flow.source) for flow in flows]
    inputs = [_given(found[source], task, use) for source in sources]
    context = _context_input(task, use, blocks, inputs)
    carried = use.context_tokens if context is not None else 0
    carried_width = inputs[context].width if context is not None else 0
    followed = any(flow.source == use.name for flow in task.flows)
    made: list[Site] = []
    for index, block in enumerate(blocks):
        where = f"task {task.name!r}, use {use.name!r}, block {block.name!r}"
        own = [item for position, item in enumerate(inputs) if position != context]
        shape = _custom_shape(block, f"{use.module}/{block.name}", custom, where)
        tokens = shape.output_tokens if shape else block.tokens or use.tokens
        plain = Activation(
            items=use.items,
            tokens=tokens,
            width=shape.output_width if shape else _output_width(block.operator),
        )
        with_context = replace(plain, context_tokens=carried, context_width=carried_width)
        is_loss = _is_loss(block.operator)
        last = index == len(blocks) - 1
        if is_loss and (followed or not last or block.repeat > 1):
            raise InputError(f"{where}: is a loss, so that nothing can follow it")
        output = with_context if _attends(blocks[index + 1 :]) else plain
        made.append(
            Site(
                metaop=f"{task.name}/{use.name}/{block.name}",
                task=task.name,
                use=use.name,
                parameter_set=f"{use.module}/{block.name}",
                operator=block.operator,
                num_ops=block.repeat,
                batch=task.batch_size,
                items=use.items,
                tokens=tokens,
                context_tokens=carried,
                inputs=tuple(inputs),
                sources=tuple(sources),
                context_input=context,
                passed=with_context if _attends(blocks[index:]) else plain,
                output=None if is_loss else output,
                data_tokens=_data_tokens(block.operator, shape, tokens, own, where),
                is_sink=last and not followed,
            )
        )
        if block.repeat > 1:
            _check_repeats(made[-1], shape, where)
        inputs, sources, context = [output], [made[-1].metaop], None
    return made


def _last_metaop(workload: Workload, task: Task, use_name: str) -> str:
    use = next(use for use in task.uses if use.name == use_name)
    return f"{task.name}/{use_name}/{workload.module(use.module).blocks[-1].name}"


def _given(source: Site, task: Task, use: ModuleUse) -> Activation:
    where = f"task {task.name!r}, flow {source.use} -> {use.name}"
    if source.output is None:
        raise InputError(f"{where}: {source.use} ends in a loss, so that nothing can follow it")
    if source.output.items not in (use.items, 1) and use.items != 1:
        raise InputError(
            f"{where}: {source.output.items} items can't become {use.items}; make them equal, or"
            " one of them 1"
        )
    return source.output


def _context_input(
    task: Task, use: ModuleUse, blocks: Sequence[Block], inputs: Sequence[Activation]
) -> int | None:
    width = _attends(blocks)
    if not width:
        return None
    fitting = [index for index, item in enumerate(inputs) if item.width == width]
    exact = [index for index in fitting if inputs[index].tokens == use.context_tokens]
    if not fitting:
        raise InputError(
            f"task {task.name!r}, use {use.name!r}: attends to a context of width {width}, but no"
            " use of that width flows into it; add such a flow"
        )
    return (exact or fitting)[0]


def _attends(blocks: Sequence[Block]) -> int:
    """Give the width of the context that one of the blocks attends to; 0 where none does."""
    widths = (getattr(block.operator, "context_width", None) for block in blocks)
    return next((width for width in widths if width is not None), 0)


def _custom_shape(
    block: Block, parameter_set: str, custom: Mapping[str, CustomShape], where: str
) -> CustomShape | None:
    if not isinstance(block.operator, Custom):
        return None
    if parameter_set not in custom:
        raise InputError(
            f"{where}: operator {block.operator.name!r} is custom: its figures are known, but not"
            f" what it computes; give a module for {parameter_set!r}, describe it by another kind"
            " of operator, or only --emulate the plan; of a built-in workload `spindle plan --tiny`"
            " makes plans that train"
        )
    return custom[parameter_set]


def _output_width(operator: Operator) -> int:
    return operator.columns if isinstance(operator, Projection) else _input_width(operator)


def _input_width(operator: Operator) -> int:
    match operator:
        case TransformerLayer() | Embedding() | ContrastiveLoss():
            return operator.width
        case Projection():
            return operator.inner
        case Custom():
            return 0


def _is_loss(operator: Operator) -> bool:
    return isinstance(operator, ContrastiveLoss) or (
        isinstance(operator, Projection) and operator.logits
    )


def _data_tokens(
    operator: Operator,
    shape: CustomShape | None,
    tokens: int,
    own: Sequence[Activation],
    where: str,
) -> int:
    """Give how many of the operator's tokens are data, having checked that the inputs fit."""
    width = shape.input_width if shape else _input_width(operator)
    for item in own:
        if item.width != width:
            raise InputError(f"{where}: takes a width of {width}, what flows in has {item.width}")
    if isinstance(operator, ContrastiveLoss) and len(own) != 2:  # noqa: PLR2004
        raise InputError(f"{where}: compares two inputs, {len(own)} flow in")
    if isinstance(operator, Embedding):
        text = tokens - sum(item.tokens for item in own)
        if text < 1:
            raise InputError(
                f"{where}: has {tokens} tokens, and what flows in takes all of them; give more"
            )
        return text
    if own:
        return 0
    return shape.input_tokens if shape else tokens


def _check_repeats(site: Site, shape: CustomShape | None, where: str) -> None:
    width = shape.input_width if shape else _input_width(site.operator)
    if site.passed.width != width:
        raise InputError(
            f"{where}: is repeated, but gives a width of {site.passed.width} and takes {width}"
        )
    if isinstance(site.operator, Embedding):
        raise InputError(f"{where}: an embedding can't be repeated: it leaves no room for text")
