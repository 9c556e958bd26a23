"""The user's tasks: ordinary modules of torch joined by flows (section 4), or one unified model.

Whatever object is added to several tasks is shared by them: its parameters are trained by all.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx, nn

from spindle_sim.errors import InputError, suggestion
from spindle_torch.api.arguments import (
    Inputs,
    as_module,
    check_argument_names,
    check_flow,
    check_module_name,
    check_task,
    input_pairs,
    kind_of,
)
from spindle_torch.api.blame import blaming
from spindle_torch.api.data import Batch, Count, Loader, loader_of

__all__ = ["SpindleTask", "TaskGraph"]


class SpindleTask:
    """One training task: modules, the flows between them, its data and its global batch.

    `data` gives the samples [first, last) of a step, or is a dataset whose items are dicts. The
    loss is what the modules give that nothing flows out of, each a mean over the samples they
    were given, times `loss_weight`. Where it is a mean over something else (words that count),
    `loss_count` says over how many in a batch. A `coupled_loss` compares samples with each other
    (CLIP's): it is computed over the whole global batch.

    Raises:
        InputError: an argument isn't what it must be.
    """

    def __init__(
        self,
        name: str,
        *,
        batch_size: int,
        data: "Loader | torch.utils.data.Dataset[Batch]",
        loss_weight: float = 1.0,
        loss_count: Count | None = None,
        coupled_loss: bool = False,
    ) -> None:
        check_task(
            name,
            batch_size=batch_size,
            loss_weight=loss_weight,
            loss_count=loss_count,
            coupled_loss=coupled_loss,
        )
        self.name = name
        self.batch_size = int(batch_size)
        self.load = loader_of(name, data, self.batch_size)
        self.loss_weight = loss_weight
        self.loss_count = loss_count
        self.coupled_loss = coupled_loss
        self.modules: dict[str, nn.Module] = {}
        self.whole: list[nn.Module] = []
        self.coupled: list[nn.Module] = []
        self._inputs: dict[str, tuple[tuple[str | None, str], ...]] = {}
        self._arguments: dict[str, Mapping[str, object]] = {}
        self._flows: list[_Flow] = []

    @classmethod
    def of_model(
        cls,
        name: str,
        model: nn.Module,
        *,
        batch_size: int,
        data: "Loader | torch.utils.data.Dataset[Batch]",
        inputs: Inputs,
        arguments: Mapping[str, object] | None = None,
        module_name: str = "model",
        loss_weight: float = 1.0,
        loss_count: Count | None = None,
        coupled_loss: bool = False,
    ) -> "SpindleTask":
        """Give the task that runs a whole model, which is split automatically.

        The model gets the batch entries named in `inputs`, and `arguments` as they are (the task's
        name, say, of a model that does several). It must give the loss, or something that has it
        as `.loss`, or flow into a loss that is added.
        """
        task = cls(
            name,
            batch_size=batch_size,
            data=data,
            loss_weight=loss_weight,
            loss_count=loss_count,
            coupled_loss=coupled_loss,
        )
        task.add_module(module_name, model, inputs=inputs)
        if arguments is not None:
            check_argument_names(name, module_name, arguments)
            task._arguments[module_name] = dict(arguments)
        return task

    def add_module(
        self,
        name: str,
        module: nn.Module | Callable[..., torch.Tensor],
        *,
        inputs: Inputs = (),
        coupled: bool = False,
        whole: bool = False,
    ) -> "SpindleTask":
        """Add a module, which gets what flows into it and then the batch entries in `inputs`.

        `inputs` are names of entries, or maps the module's argument names to them. A `coupled`
        module (a contrastive loss) gets the whole global batch, wherever it runs; a `whole` one
        isn't cut into its repeated blocks.

        Raises:
            InputError: the task has a module of that name, or an argument isn't what it must be.
        """
        check_module_name(self.name, name, self.modules)
        part = as_module(self.name, name, module)
        self._inputs[name] = input_pairs(self.name, name, inputs)
        self.modules[name] = part
        if whole or coupled:
            self.whole.append(part)
        if coupled:
            self.coupled.append(part)
        return self

    def add_flow(
        self,
        source: str,
        target: str,
        *,
        argument: str | None = None,
        output: str | int | None = None,
    ) -> "SpindleTask":
        """Hand what `source` gives, or one `output` of it, to `target`.

        It is the next positional argument, in the order of the flows, or the `argument` of that
        name.

        Raises:
            InputError: a name is no module of the task, or an argument isn't what it must be.
        """
        for end in (source, target):
            if end not in self.modules:
                hint = suggestion(str(end), self.modules)
                raise InputError(f"task {self.name!r}: no module {end!r:.60} to join; {hint}")
        check_flow(f"task {self.name!r}: the flow {source} -> {target}", argument, output)
        self._flows.append(_Flow(source, target, argument, output))
        return self

    def graph(self) -> "TaskGraph":
        """Give the task as one module, from a batch to its loss.

        Raises:
            InputError: there are no modules, or the flows form a cycle.
        """
        order = _order(self.name, self.modules, self._flows)
        return TaskGraph(
            self.name,
            {name: self.modules[name] for name in order},
            flows={name: [flow for flow in self._flows if flow.target == name] for name in order},
            inputs=self._inputs,
            arguments=self._arguments,
        )


class TaskGraph(nn.Module):
    """A task's modules in the order of the flows: a batch in, the loss out."""

    def __init__(
        self,
        name: str,
        modules: Mapping[str, nn.Module],
        *,
        flows: "Mapping[str, Sequence[_Flow]]",
        inputs: Mapping[str, tuple[tuple[str | None, str], ...]],
        arguments: Mapping[str, Mapping[str, object]],
    ) -> None:
        super().__init__()
        self.name = name
        self.parts = nn.ModuleDict(modules)
        self.flows = flows
        self.inputs = inputs
        self.arguments = arguments
        sources = {flow.source for into in flows.values() for flow in into}
        self.ends = [part for part in modules if part not in sources]

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Give the loss: the sum of what the ends give."""
        made: dict[str, object] = {}
        for name, module in self.parts.items():
            positional: list[object] = []
            named: dict[str, object] = dict(self.arguments.get(name, {}))
            for flow in self.flows[name]:
                where = f"task {self.name!r}: the flow {flow.source} -> {name}"
                value = _selected(made[flow.source], flow.output, where)
                if flow.argument is None:
                    positional.append(value)
                else:
                    named[flow.argument] = value
            for argument, entry in self.inputs[name]:
                value = _entry(batch, entry, f"task {self.name!r}: {name}")
                if argument is None:
                    positional.append(value)
                else:
                    named[argument] = value
            given = _given(positional, named)
            with blaming(f"task {self.name!r}: module {name!r}", given, name):
                made[name] = module(*positional, **named)
        losses = [_loss(self.name, end, made[end]) for end in self.ends]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


@dataclass(frozen=True, slots=True)
class _Flow:
    source: str
    target: str
    argument: str | None
    output: str | int | None


def _order(task: str, names: Iterable[str], flows: Sequence[_Flow]) -> list[str]:
    waiting, ordered = list(names), list[str]()
    if not waiting:
        raise InputError(f"task {task!r}: has no modules; add some with add_module")
    while waiting:
        ready = [
            name
            for name in waiting
            if all(flow.source in ordered for flow in flows if flow.target == name)
        ]
        if not ready:
            raise InputError(f"task {task!r}: the flows among {', '.join(waiting)} form a cycle")
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered


def _entry(batch: Mapping[str, torch.Tensor], name: str, where: str) -> torch.Tensor:
    try:
        return batch[name]
    except KeyError:
        hint = suggestion(name, list(batch))
        raise InputError(f"{where} wants {name!r}, which its data don't give; {hint}") from None


def _given(positional: Sequence[object], named: Mapping[str, object]) -> str:
    """Say what a module was given, for whoever reads that it failed."""
    shown = [_shown(value) for value in positional]
    shown += [f"{name}={_shown(value)}" for name, value in named.items()]
    return f"; it was given {', '.join(shown)}" if shown else "; it was given nothing"


def _shown(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__


def _selected(value: object, output: str | int | None, where: str) -> object:
    if output is None:
        return value
    if isinstance(value, torch.Tensor) and not isinstance(output, str):
        raise InputError(f"{where}: its source gives one tensor; leave output={output!r} out")
    try:
        if isinstance(output, str) and not isinstance(value, Mapping):
            return getattr(value, output)
        return value[output]  # type: ignore[index]
    except (AttributeError, LookupError, TypeError) as error:
        hint = suggestion(str(output), map(str, value)) if isinstance(value, Mapping) else ""
        raise InputError(
            f"{where}: its source gives {kind_of(value)}, which has no {output!r}"
            + (f"; {hint}" if hint else "")
        ) from error


def _loss(task: str, name: str, value: object) -> torch.Tensor:
    loss = value
    if isinstance(loss, fx.Proxy):  # while it is traced
        return cast(torch.Tensor, loss)
    if not isinstance(loss, torch.Tensor):
        loss = value.get("loss") if isinstance(value, Mapping) else getattr(value, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(value).__name__
        raise InputError(
            f"task {task!r}: {name} ends it, so it must give a loss of one number, not {found};"
            " let its output flow into a loss"
        )
    return loss.reshape(())
