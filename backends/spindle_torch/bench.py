"""One operator ready to be run again and again: the module that runs, with inputs of its shape.

Collectives are left out: a shard's stand-in group does what the shard itself does around them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from spindle_sim.estimate.probe import Probe, StepProbe
from spindle_sim.plan import Backward
from spindle_sim.workload import (
    ContrastiveLoss,
    Custom,
    Embedding,
    Projection,
    TransformerLayer,
)
from spindle_torch.collectives import Members
from spindle_torch.drawing import Drawer
from spindle_torch.layers import (
    ContrastiveModule,
    EmbeddingModule,
    ProjectionModule,
    TransformerModule,
)
from spindle_torch.stepping import adamw

__all__ = ["Bench", "make_bench", "make_step", "num_stepped", "step_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An operator's forward, and the tensors whose gradients its backward may give.

    Or those of `length` operators, each with the output of the one before it.
    """

    forward: Callable[[], torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor, ...]
    length: int = 1

    @property
    def backwards(self) -> tuple[Backward, ...]:
        """The kinds of backward that it has, that of all gradients first."""
        kinds = (Backward.FULL,) if self.inputs and self.weights else ()
        if self.inputs:
            kinds = (*kinds, Backward.INPUT_ONLY)
        return (*kinds, Backward.WEIGHT_ONLY) if self.weights else kinds

    def want(self, backward: Backward) -> None:
        """Make autograd compute the gradients of one kind of backward, and no others."""
        for tensor in self.inputs:
            tensor.requires_grad_(backward is not Backward.WEIGHT_ONLY)
        for tensor in self.weights:
            tensor.requires_grad_(backward is not Backward.INPUT_ONLY)

    def forget(self) -> None:
        """Drop the gradients, so that the next backward doesn't add to them."""
        for tensor in (*self.inputs, *self.weights):
            tensor.grad = None


def make_bench(probe: Probe, dtype: torch.dtype, device: torch.device) -> Bench:
    """Make the operator's module, or shard 0 of `tp`, and inputs for its samples.

    Raises:
        InputError: the operator can't be divided by `tp`.
    """
    make = _Maker(probe=probe, dtype=dtype, device=device)
    match probe.operator:
        case TransformerLayer():
            return _transformer(probe.operator, make)
        case Embedding():
            return _embedding(probe.operator, make)
        case Projection():
            return _projection(probe.operator, make)
        case ContrastiveLoss():
            return _contrastive(probe.operator, make)
        case Custom():
            raise AssertionError("a custom operator has no module")


def make_step(
    probe: StepProbe, dtype: torch.dtype, device: torch.device
) -> torch.optim.Optimizer | None:
    """Make the optimizer that runs have, over parameters of these operators; None without any."""
    parameters = [
        nn.Parameter(torch.randn(weight.shape, dtype=dtype, device=device))
        for operator in probe.operators
        if not isinstance(operator, Custom)
        for weight in make_bench(
            Probe(operator=operator, tokens=2, samples=1, context_tokens=2), dtype, device
        ).weights
    ]
    return adamw(parameters) if parameters else None


def step_s(optimizer: torch.optim.Optimizer) -> float:
    """Give the seconds of one step, with gradients made before it and forgotten within it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # Not 0: dividing 0 by the root of 0 takes a CPU twice as long as any other step.
            parameter.grad = parameter.detach().clone()
    is_cuda = optimizer.param_groups[0]["params"][0].is_cuda
    if is_cuda:
        torch.cuda.synchronize()
    begun_s = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun_s


def num_stepped(optimizer: torch.optim.Optimizer) -> int:
    """Count the parameters of an optimizer."""
    return sum(
        parameter.numel() for group in optimizer.param_groups for parameter in group["params"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    probe: Probe
    dtype: torch.dtype
    device: torch.device

    @property
    def drawer(self) -> Drawer:
        return _QuickDrawer(
            name=self.probe.name,
            seed=0,
            dtype=self.dtype,
            device=self.device,
            size=self.probe.tp,
        )

    @property
    def tensor(self) -> Members | None:
        return _stand_in(self.probe.tp)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def tokens(self, *shape: int, below: int) -> torch.Tensor:
        return torch.randint(below, shape, device=self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuickDrawer(Drawer):
    """Draws in the wanted precision, on the device and one shard only: values play no part."""

    def normal(
        self, name: str, shape: Sequence[int], scale: float, *, divided: int | None = None
    ) -> nn.Parameter:
        del name
        own = [
            length // self.size if index == divided else length
            for index, length in enumerate(shape)
        ]
        return nn.Parameter(scale * torch.randn(own, dtype=self.dtype, device=self.device))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StandIn(Members):
    """A group whose other members are thought: what comes from them is what one has oneself."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor for _ in self.ranks]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().clone()


def _stand_in(size: int) -> Members | None:
    if size == 1:
        return None
    no_group = cast("dist.ProcessGroup", None)
    return _StandIn(group=no_group, ranks=tuple(range(size)), position=0)


def _transformer(operator: TransformerLayer, make: _Maker) -> Bench:
    probe, tensor = make.probe, make.tensor
    modules = [TransformerModule(operator, make.drawer) for _ in range(probe.chained)]
    rows = make.normal(probe.samples, probe.tokens, operator.width)
    inputs: tuple[torch.Tensor, ...] = (rows,)
    context = None
    if operator.context_width is not None:
        context = make.normal(probe.samples, probe.context_tokens, operator.context_width)
        inputs = rows, context

    def forward() -> torch.Tensor:
        made = rows
        for module in modules:
            made = module(made, context, tensor)
        return made

    weights = tuple(weight for module in modules for weight in module.parameters())
    return Bench(forward=forward, inputs=inputs, weights=weights, length=len(modules))


def _embedding(operator: Embedding, make: _Maker) -> Bench:
    probe, tensor = make.probe, make.tensor
    module = EmbeddingModule(operator, make.drawer)
    flowing = min(probe.flowing_tokens, probe.tokens - 1)
    ids = make.tokens(probe.samples, probe.tokens - flowing, below=operator.vocabulary)
    if not flowing:
        return _bench(lambda: module(ids, None, tensor), (), module)
    before = make.normal(probe.samples, flowing, operator.width)
    return _bench(lambda: module(ids, before, tensor), (before,), module)


def _projection(operator: Projection, make: _Maker) -> Bench:
    probe, tensor = make.probe, make.tensor
    projection = ProjectionModule(operator, make.drawer)
    flowing = probe.flowing_tokens or probe.tokens
    rows = make.normal(probe.samples, flowing, operator.inner)

    def module(table: torch.Tensor | None) -> torch.Tensor:
        own = rows
        if flowing != probe.tokens:  # pooled, which takes longer than the product itself
            pooled = functional.adaptive_avg_pool1d(rows.transpose(1, 2), probe.tokens)
            own = pooled.transpose(1, 2)
        product: torch.Tensor = projection(own, table, tensor)
        return product

    table = make.normal(operator.columns // probe.tp, operator.inner) if operator.tied else None
    tied = () if table is None else (table,)
    if not operator.logits:
        return _bench(lambda: module(table), (rows,), projection, tied)
    labels = make.tokens(probe.samples * probe.tokens, below=operator.columns)

    def loss() -> torch.Tensor:
        logits = module(table)
        return functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")

    return _bench(loss, (rows,), projection, tied)


def _contrastive(operator: ContrastiveLoss, make: _Maker) -> Bench:
    module = ContrastiveModule(operator, make.drawer)
    first = make.normal(make.probe.samples, operator.width)
    second = make.normal(make.probe.samples, operator.width)
    samples = _stand_in(make.probe.replicas)
    return _bench(lambda: module(first, second, samples), (first, second), module)


def _bench(
    forward: Callable[[], torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    module: nn.Module,
    tied: tuple[torch.Tensor, ...] = (),
) -> Bench:
    return Bench(forward=forward, inputs=inputs, weights=(*module.parameters(), *tied))
