"""The oracle: all tasks in one process, plain PyTorch, one graph, one backward.

It shares the operators' modules and the drawn data with the backend, and nothing else: no slices,
no packing, no explicit backward, no groups.

What another precision makes of the very numbers of float32 tells how far rounding alone takes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    Embedding,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)
from spindle_torch.data import DataSource
from spindle_torch.drawing import Drawer
from spindle_torch.layers import (
    ContrastiveModule,
    EmbeddingModule,
    ProjectionModule,
    TransformerModule,
)
from spindle_torch.shapes import CustomShape, Site, sites

MAKERS: dict[type, Callable[..., nn.Module]] = {
    TransformerLayer: TransformerModule,
    Embedding: EmbeddingModule,
    Projection: ProjectionModule,
    ContrastiveLoss: ContrastiveModule,
}


ULP = 2.0**-23  # of float32, to numbers of 1 and more


class RoundedData(DataSource):
    """The data that float32 has, in any precision."""

    def inputs(
        self, site: Site, first: int, last: int, custom: CustomShape | None = None
    ) -> torch.Tensor | None:
        return self._rounded(super().inputs(site, first, last, custom))

    def targets(self, site: Site, first: int, last: int) -> torch.Tensor | None:
        return self._rounded(super().targets(site, first, last))

    def _rounded(self, drawn: torch.Tensor | None) -> torch.Tensor | None:
        return drawn.float().to(drawn.dtype) if drawn is not None else None


@dataclass
class Reference:
    """One process. With `shaken` it computes with numbers that float32 has: with 0 as it has them,
    else each parameter up to two units in the last place off, in another way for each number."""

    workload: Workload
    dtype: torch.dtype
    seed: int = 0
    clip_norm: float | None = None
    autocast: bool = False
    shaken: int | None = None
    layers: dict[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for module in self.workload.modules:
            for block in module.blocks:
                for index in range(block.repeat):
                    name = f"{module.name}/{block.name}/{index}"
                    drawer = Drawer(
                        name=name,
                        seed=self.seed,
                        dtype=self.dtype,
                        device=torch.device("cpu"),
                        trained=not module.frozen,
                    )
                    self.layers[name] = MAKERS[type(block.operator)](block.operator, drawer)
        if self.shaken is not None:
            self._shake(self.shaken)
        self.sites = sites(self.workload)
        trained = [p for _, p in self.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3, foreach=False)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, layer in self.layers.items():
            for part, parameter in layer.named_parameters():
                yield f"{name}/{part}", parameter

    def step(self, number: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Run one training step; give the losses and the gradients, clipped if they are to be."""
        source = DataSource if self.shaken is None else RoundedData
        data = source(seed=self.seed, step=number, dtype=self.dtype, device=torch.device("cpu"))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            losses = {task.name: self._task_loss(task, data) for task in self.workload.tasks}
        self.optimizer.zero_grad()
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        trained = {name: item for name, item in self.parameters() if item.requires_grad}
        for parameter in trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(list(trained.values()), self.clip_norm)
        gradients = {
            name: item.grad.clone() for name, item in trained.items() if item.grad is not None
        }
        self.optimizer.step()
        return {name: loss.item() for name, loss in losses.items()}, gradients

    def _shake(self, draw: int) -> None:
        generator = torch.Generator().manual_seed(draw)
        for _, parameter in self.parameters():
            numbers = parameter.detach().float()
            if draw:
                by = torch.rand(numbers.shape, generator=generator, dtype=torch.float64)
                numbers = (numbers.double() * (1 + 2 * ULP * (2 * by - 1))).float()
            parameter.data = numbers.to(self.dtype)

    def _task_loss(self, task: Task, data: DataSource) -> torch.Tensor:
        outputs: dict[str, torch.Tensor] = {}
        losses: list[torch.Tensor] = []
        waiting = list(task.uses)
        while waiting:
            use = next(
                u
                for u in waiting
                if all(f.source in outputs for f in task.flows if f.target == u.name)
            )
            waiting.remove(use)
            inputs = [outputs[f.source] for f in task.flows if f.target == use.name]
            outputs[use.name] = self._use(task, use, inputs, data)
            if all(flow.source != use.name for flow in task.flows):
                losses.append(self._loss(task, use, outputs[use.name], data))
        return torch.stack(losses).sum()

    def _use(
        self, task: Task, use: ModuleUse, inputs: list[torch.Tensor], data: DataSource
    ) -> torch.Tensor:
        module = self.workload.module(use.module)
        inputs = [x.mean(1, keepdim=True) if use.items == 1 else x for x in inputs]
        context = None
        widths = [getattr(b.operator, "context_width", None) for b in module.blocks]
        if any(widths):
            place = [x.shape[2] for x in inputs].index(use.context_tokens)
            context = inputs.pop(place).flatten(0, 1)
        for block in module.blocks:
            site = self.sites[f"{task.name}/{use.name}/{block.name}"]
            own = data.inputs(site, 0, task.batch_size)
            for index in range(block.repeat):
                layer = self.layers[f"{use.module}/{block.name}/{index}"]
                x = self._operate(layer, block, use, inputs, context, own)
                inputs, own = [x], None
        return inputs[0]

    def _operate(
        self,
        layer: nn.Module,
        block: Block,
        use: ModuleUse,
        inputs: list[torch.Tensor],
        context: torch.Tensor | None,
        own: torch.Tensor | None,
    ) -> torch.Tensor:
        operator = block.operator
        if isinstance(operator, ContrastiveLoss):
            a, b = (functional.normalize(x.mean((1, 2)), dim=-1) for x in inputs)
            learned = dict(layer.named_parameters()).get("extra")
            logits = a @ b.T * (1 / 0.07 if learned is None else learned[0].exp())
            labels = torch.arange(len(a))
            return (
                functional.cross_entropy(logits, labels)
                + functional.cross_entropy(logits.T, labels)
            ) / 2
        parts = [x.flatten(0, 1) for x in inputs]
        if isinstance(operator, Embedding):
            assert own is not None
            text: torch.Tensor = layer(own.flatten(0, 1), torch.cat(parts, 1) if parts else None)
            return text.view(-1, use.items, *text.shape[1:])
        x = torch.cat(parts, 1) if parts else own.flatten(0, 1)  # type: ignore[union-attr]
        tokens = block.tokens or use.tokens
        if x.shape[1] != tokens:
            x = functional.adaptive_avg_pool1d(x.mT, tokens).mT
        table = None
        if isinstance(operator, Projection) and operator.tied:
            table = self._table(use.module, operator.columns, operator.inner)
        made: torch.Tensor = layer(x, context if isinstance(operator, TransformerLayer) else table)
        return made.view(-1, use.items, *made.shape[1:])

    def _table(self, module: str, rows: int, width: int) -> torch.Tensor:
        tables = {
            name: layer.table
            for name, layer in self.layers.items()
            if isinstance(layer, EmbeddingModule) and layer.table.shape == (rows, width)
        }
        own = [table for name, table in tables.items() if name.startswith(f"{module}/")]
        return (own or list(tables.values()))[0]

    def _loss(
        self, task: Task, use: ModuleUse, output: torch.Tensor, data: DataSource
    ) -> torch.Tensor:
        block = self.workload.module(use.module).blocks[-1]
        if isinstance(block.operator, ContrastiveLoss):
            return output
        site = self.sites[f"{task.name}/{use.name}/{block.name}"]
        targets = data.targets(site, 0, task.batch_size)
        assert targets is not None
        if isinstance(block.operator, Projection) and block.operator.logits:
            return functional.cross_entropy(output.flatten(0, 2), targets.flatten())
        return functional.mse_loss(output, targets)
