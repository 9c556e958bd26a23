"""The part of the model that one rank holds, and how a run of operators is computed with it.

Localization (section 3.6): a rank makes the layers of its own slices and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from spindle_sim.workload import (
    ContrastiveLoss,
    Custom,
    Embedding,
    Operator,
    Projection,
    TransformerLayer,
    Workload,
)
from spindle_torch.calls import SliceCall
from spindle_torch.collectives import Members
from spindle_torch.drawing import Drawer
from spindle_torch.entering import enter, fit_rows, fit_tokens, pack
from spindle_torch.layers import (
    ContrastiveModule,
    EmbeddingModule,
    LayerShards,
    ProjectionModule,
    TransformerModule,
)
from spindle_torch.pool import OperatorKey, tied_table
from spindle_torch.shapes import CustomShape, Site

__all__ = ["Brought", "CustomOperator", "LocalModel", "Model", "SliceCall", "local_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOperator:
    """What a user gives for a custom operator: its shapes for one item, and how to make it.

    The module takes (rows, input tokens, input width), a row for each sample and item, and gives
    (rows, output tokens, output width). Its parameters are drawn anew by their names, so that all
    ranks begin alike: normal, of 0.02.
    """

    shape: CustomShape
    make: Callable[[], nn.Module]


class Model(Protocol):
    """The parameters of one rank by operator, and what its slices compute with them."""

    @property
    def layers(self) -> Mapping[OperatorKey, nn.Module]:
        """Give the modules of each operator's parameters."""
        ...

    def forward(
        self, call: SliceCall, inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Give (output, loss), as `LocalModel` does."""
        ...

    def named_parameters(self, key: OperatorKey) -> list[tuple[str, nn.Parameter]]:
        """Give what is trained of one operator, or all of a frozen one, by full names."""
        ...

    def num_parameters(self, key: OperatorKey) -> int:
        """Count the numbers of one operator's parameters, trained or not."""
        ...


class Brought(Protocol):
    """A user's own model in place of the kinds of operators: its data and losses are its own."""

    def sites(self) -> dict[str, Site]:
        """Give what flows in and out of each MetaOp."""
        ...

    def local_model(
        self, keys: Sequence[OperatorKey], *, seed: int, dtype: torch.dtype, device: torch.device
    ) -> Model:
        """Give the part of it that one rank holds."""
        ...


@dataclass(slots=True)
class LocalModel:
    """The layers of one rank by operator; `frozen` are the names of frozen modules."""

    layers: dict[OperatorKey, nn.Module] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)  # tied parameter set -> embedding's
    frozen: frozenset[str] = frozenset()

    def forward(
        self, call: SliceCall, inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Give (output, loss): rows of samples to hand on, and the part of the task's loss.

        Inputs are (samples, elements) in the order of the site's inputs. The loss is a sum over
        this rank's samples over the global number, so that losses and gradients of ranks add up.
        """
        own, context = enter(call, inputs)
        for index in range(call.first_op, call.first_op + call.num_ops):
            own = [self._visited(call, index, own, context)]
        output, loss = own[0], None
        if call.ends_metaop and call.site.is_sink:
            loss = _loss(call, output)
        shape = call.site.output if call.ends_metaop else call.site.passed
        return (None if shape is None else pack(output, context, call, shape)), loss

    def add(self, other: "LocalModel") -> None:
        """Take over the layers of another one."""
        self.layers |= other.layers
        self.tables |= other.tables

    def named_parameters(self, key: OperatorKey) -> list[tuple[str, nn.Parameter]]:
        """Give the parameters of one operator by their full names."""
        name = f"{key.parameter_set}/{key.index}"
        return [
            (f"{name}/{part}", parameter) for part, parameter in self.layers[key].named_parameters()
        ]

    def num_parameters(self, key: OperatorKey) -> int:
        """Count the numbers of one operator's parameters, trained or not."""
        return sum(parameter.numel() for parameter in self.layers[key].parameters())

    def _visited(
        self,
        call: SliceCall,
        index: int,
        own: Sequence[torch.Tensor],
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute one operator, having its parameters there; again when its backward begins."""
        visits = call.visits
        if visits is None:
            return self._operate(call, index, own, context)
        number = index - call.first_op
        visits.begin(number)
        output = self._operate(call, index, own, context)
        if output.requires_grad:
            backwards = call.num_ops - 1 - number
            output.register_hook(lambda _: visits.begin(backwards))  # type: ignore[no-untyped-call]
        return output

    def _operate(
        self,
        call: SliceCall,
        index: int,
        own: Sequence[torch.Tensor],
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            return self._apply(call, index, tensors, context)

        if call.recompute and torch.is_grad_enabled():
            # The context is kept anyway: it isn't an output of the layer.
            result = checkpoint(run, *own, use_reentrant=False)
            assert isinstance(result, torch.Tensor)
            return result
        return run(*own)

    def _apply(
        self,
        call: SliceCall,
        index: int,
        own: Sequence[torch.Tensor],
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute one operator: (samples, items, tokens, width) in and out."""
        site = call.site
        layer = self.layers[_key(call, site.parameter_set, index)]
        if isinstance(layer, ContrastiveModule):
            first, second = (fit_tokens(item, 1).flatten(1) for item in own)
            loss: torch.Tensor = layer(first, second, call.samples, call.site.batch)
            return loss
        rows = _side_by_side([item.flatten(0, 1) for item in own])
        data = call.data.flatten(0, 1) if call.data is not None and index == 0 else None
        shards = _shards(call)
        if isinstance(layer, EmbeddingModule):
            made = _called(layer, (data, rows, call.tensor), shards=shards)
        elif isinstance(layer, TransformerModule):
            attended = None if context is None else context.flatten(0, 1)
            arguments = (_fitted(call, rows, data), attended, call.tensor)
            made = _called(layer, arguments, shards=shards, selective=call.selective)
        elif isinstance(layer, ProjectionModule):
            arguments = (_fitted(call, rows, data), self._table(call), call.tensor)
            made = _called(layer, arguments, shards=shards)
        else:
            if rows is not None and index and call.tokens is not None:
                rows = call.tokens.replicated(rows, site.tokens)
            made = layer(data if rows is None else rows)
        if call.tokens is not None:
            # Of an embedding and a transformer layer this rank's own tokens are left, else all.
            is_cut = isinstance(layer, EmbeddingModule | TransformerModule)
            if is_cut and call.is_whole_behind(index):
                made = call.tokens.replicated(made, site.tokens)
            elif not is_cut and not call.is_whole_behind(index):
                made = call.tokens.cut(made)
        return made.view(len(made) // site.items, site.items, *made.shape[1:])

    def _table(self, call: SliceCall) -> torch.Tensor | None:
        name = self.tables.get(call.site.parameter_set)
        if name is None:
            return None
        layer = self.layers[_key(call, name, 0)]
        assert isinstance(layer, EmbeddingModule), f"{name} isn't an embedding"
        frozen = call.site.parameter_set.split("/", 1)[0] in self.frozen
        return layer.table.detach() if frozen else layer.table


def local_model(
    workload: Workload,
    keys: Sequence[OperatorKey],
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    custom: Mapping[str, CustomOperator] | None = None,
) -> LocalModel:
    """Make the layers of these operators; equal names, seed and dtype give equal bits anywhere.

    Raises:
        InputError: an operator can't be divided as asked, or has no module.
    """
    modules = {module.name: module for module in workload.modules}
    model = LocalModel(frozen=frozenset(name for name, item in modules.items() if item.frozen))
    for key in keys:
        module_name, block_name = key.parameter_set.split("/", 1)
        module = modules[module_name]
        operator = next(b.operator for b in module.blocks if b.name == block_name)
        drawer = Drawer(
            name=f"{key.parameter_set}/{key.index}",
            seed=seed,
            dtype=dtype,
            device=device,
            trained=not module.frozen,
            rank=key.shard,
            size=key.num_shards,
        )
        model.layers[key] = _layer(operator, drawer, (custom or {}).get(key.parameter_set))
        if isinstance(operator, Projection) and operator.tied:
            model.tables[key.parameter_set] = tied_table(workload, key.parameter_set)
    return model


def _layer(operator: Operator, drawer: Drawer, custom: CustomOperator | None) -> nn.Module:
    match operator:
        case TransformerLayer():
            return TransformerModule(operator, drawer)
        case Embedding():
            return EmbeddingModule(operator, drawer)
        case Projection():
            return ProjectionModule(operator, drawer)
        case ContrastiveLoss():
            return ContrastiveModule(operator, drawer)
        case Custom():
            assert custom is not None, f"{drawer.name}: custom, without a module"
            return _redrawn(custom.make(), drawer)


def _redrawn(module: nn.Module, drawer: Drawer) -> nn.Module:
    module = module.to(dtype=drawer.dtype, device=drawer.device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(drawer.normal(name, parameter.shape, 0.02))
            parameter.requires_grad_(drawer.trained)
    return module


def _side_by_side(own: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Give inputs one behind the other along the tokens; a single one as it is, not copied."""
    if len(own) > 1:
        return torch.cat(list(own), dim=1)
    return own[0] if own else None


def _shards(call: SliceCall) -> LayerShards | None:
    if call.tokens is None:
        return None
    return LayerShards(
        ranks=call.tokens, tokens=call.site.tokens, context_tokens=call.site.context_tokens
    )


def _called(
    layer: TransformerModule | EmbeddingModule | ProjectionModule,
    arguments: tuple[torch.Tensor | Members | None, ...],
    *,
    shards: LayerShards | None,
    selective: bool = False,
) -> torch.Tensor:
    """Call a layer; where it works on a rank's own tokens, gradients of all ranks are summed."""
    options: dict[str, object] = {"selective": True} if selective else {}
    if shards is None:
        made: torch.Tensor = layer(*arguments, **options)
        return made
    names = layer.token_wise
    summed = shards.ranks.summed([layer.get_parameter(name) for name in names])
    copies = dict(zip(names, summed, strict=True))
    result = functional_call(layer, copies, arguments, {**options, "shards": shards})
    assert isinstance(result, torch.Tensor)
    return result


def _fitted(call: SliceCall, rows: torch.Tensor | None, data: torch.Tensor | None) -> torch.Tensor:
    """Give what a layer takes: its tokens of what flows in, else data."""
    if call.tokens is not None:
        if rows is not None:
            return rows  # fitted and cut on entering
        assert data is not None, f"{call.site.metaop}: nothing to compute on"
        return call.tokens.cut(fit_rows(data, call.site.tokens))
    given = data if rows is None else rows
    assert given is not None, f"{call.site.metaop}: nothing to compute on"
    return fit_rows(given, call.site.tokens)


def _key(call: SliceCall, parameter_set: str, index: int) -> OperatorKey:
    return OperatorKey(
        parameter_set=parameter_set, index=index, shard=call.shard, num_shards=call.num_shards
    )


def _loss(call: SliceCall, output: torch.Tensor) -> torch.Tensor:
    if isinstance(call.site.operator, ContrastiveLoss):
        return output
    assert call.targets is not None, f"{call.site.metaop}: a loss without targets"
    count = call.site.batch * call.site.items * call.site.tokens
    if isinstance(call.site.operator, Projection) and call.site.operator.logits:
        return (
            functional.cross_entropy(output.flatten(0, 2), call.targets.flatten(), reduction="sum")
            / count
        )
    return ((output - call.targets) ** 2).sum() / (count * output.shape[-1])
