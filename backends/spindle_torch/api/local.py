"""A rank's share of a split model: the parameters that its slices use, and how they run.

The user's modules are all there on each rank, but parameters that no slice of the rank uses have
no memory: they read as zeros, and nothing that counts depends on them.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spindle_sim.errors import ExecutionError, InputError
from spindle_torch.api.data import count_in, load_batch
from spindle_torch.api.parts import Part
from spindle_torch.api.replay import Replay
from spindle_torch.api.splitting import SplitModel
from spindle_torch.api.units import UnitUse
from spindle_torch.api.values import Value
from spindle_torch.collectives import gathered_samples
from spindle_torch.model import SliceCall
from spindle_torch.pool import OperatorKey

__all__ = ["LocalParts", "localize", "recomputed"]

_Values = dict[Value, torch.Tensor]


@dataclass(slots=True, kw_only=True)
class LocalParts:
    """What one rank holds and runs; make it with `localize`."""

    split: SplitModel
    seed: int
    dtype: torch.dtype
    device: torch.device
    held: dict[OperatorKey, list[tuple[str, nn.Parameter]]]
    _batches: dict[tuple[str, int, int, int], dict[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def layers(self) -> dict[OperatorKey, nn.Module]:
        """The parameters of each operator."""
        return {
            key: nn.ParameterList([parameter for _, parameter in items])
            for key, items in self.held.items()
        }

    def forward(
        self, call: SliceCall, inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Give (output, loss) of one slice: rows to hand on, and this rank's part of the loss."""
        use = self.split.use_of(call.site.metaop)
        last = call.first_op + call.num_ops
        parts = use.parts[call.first_op : last]
        coupled = parts[0].coupled
        rows = [self._gathered(item, call) if coupled else item for item in inputs]
        given = self._given(use, call.first_op, rows)
        groups = [parts] if not call.recompute else [(part,) for part in parts]
        loss = None
        torch.manual_seed(_number(self.seed, call))
        for group in groups:
            made, loss = self._run(call, group, given)
            given = {**given, **made}
        ends = last == len(use.parts)
        wanted = use.outputs if ends else use.passed(last - 1)
        output = self._packed(call, wanted, given) if wanted else None
        return output, None if loss is None else _weighted(loss, self._share(call))

    def named_parameters(self, key: OperatorKey) -> list[tuple[str, nn.Parameter]]:
        """Give the trained parameters of one operator, or all of a frozen one."""
        trained = [item for item in self.held[key] if item[1].requires_grad]
        return trained or self.held[key]

    def num_parameters(self, key: OperatorKey) -> int:
        """Count the numbers of one operator's parameters, trained or not."""
        return sum(parameter.numel() for _, parameter in self.held[key])

    def _given(self, use: UnitUse, first_op: int, inputs: Sequence[torch.Tensor]) -> _Values:
        """Take the rows apart into the values that they carry."""
        found = self.split.captures[use.task]
        if first_op:
            listed = [use.passed(first_op - 1)]
        else:
            listed = [self.split.outputs_of(use.task, source) for source in use.sources]
        given: _Values = {}
        for rows, values in zip(inputs, listed, strict=True):
            sizes = [found.shape(value).elements for value in values]
            for value, part in zip(values, torch.split(rows, sizes, dim=1), strict=True):
                given[value] = found.shape(value).unpack(part)
        return given

    def _run(
        self, call: SliceCall, parts: Sequence[Part], given: _Values
    ) -> tuple[_Values, torch.Tensor | None]:
        task = call.site.task
        replay = Replay(
            task=self.split.graphs[task],
            leaves=self.split.leaves.modules,
            capture=self.split.captures[task],
        )
        steps = frozenset(step for part in parts for step in part.steps)
        whole = parts[0].coupled
        span = (0, call.site.batch) if whole else (call.first_sample, call.last_sample)
        batch = self._batch(task, call.step, span)
        values = list(given)

        def run(*tensors: torch.Tensor) -> tuple[_Values, torch.Tensor | None]:
            # Copies: the model's code may overwrite them, and others need them as they are.
            copies = {value: item.clone() for value, item in zip(values, tensors, strict=True)}
            try:
                return replay.run(
                    steps,
                    copies,
                    batch,
                    samples=span[1] - span[0],
                    dtype=self.dtype,
                    device=self.device,
                )
            except InputError as error:  # the task was right when it was split
                where = f"step {call.step}, samples [{span[0]}, {span[1]})"
                raise ExecutionError(f"{error} ({where})") from error

        if call.recompute and torch.is_grad_enabled():
            result = recomputed(run, list(given.values()), self.device)
            assert isinstance(result, tuple)
            return result
        return run(*given.values())

    def _packed(self, call: SliceCall, wanted: Sequence[Value], given: _Values) -> torch.Tensor:
        found = self.split.captures[call.site.task]
        whole = self.split.use_of(call.site.metaop).parts[0].coupled
        samples = call.site.batch if whole else call.last_sample - call.first_sample
        packed = [found.shape(value).pack(given[value].to(self.dtype), samples) for value in wanted]
        rows = torch.cat(packed, dim=1)
        return rows[call.first_sample : call.last_sample] if whole else rows

    def _share(self, call: SliceCall) -> float:
        """Give this rank's weight of the loss, so that the sum over ranks is the batch's loss."""
        task = self.split.task(call.site.task)
        weight = task.loss_weight
        if self.split.use_of(call.site.metaop).parts[0].coupled:
            return weight if call.samples is None else weight / len(call.samples.ranks)
        if task.loss_count is None:
            return weight * (call.last_sample - call.first_sample) / call.site.batch
        spans = (call.first_sample, call.last_sample), (0, call.site.batch)
        counts = [
            count_in(task.name, task.loss_count, self._batch(task.name, call.step, span))
            for span in spans
        ]
        return weight * counts[0] / counts[1] if counts[1] else 0.0

    def _gathered(self, rows: torch.Tensor, call: SliceCall) -> torch.Tensor:
        return gathered_samples(rows, call.samples, call.site.batch)

    def _batch(self, task: str, step: int, span: tuple[int, int]) -> dict[str, torch.Tensor]:
        if any(key[1] != step for key in self._batches):
            self._batches.clear()
        key = task, step, *span
        if key not in self._batches:
            loaded = load_batch(task, self.split.task(task).load, step, span, self.dtype)
            self._batches[key] = {name: item.to(self.device) for name, item in loaded.items()}
        return self._batches[key]


def localize(
    split: SplitModel,
    keys: Iterable[OperatorKey],
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> LocalParts:
    """Keep the parameters of these operators in memory, and give up the others.

    The user's modules are changed: it is done once, in a process that runs a plan.
    """
    units = {unit.name: unit for unit in split.units}
    held: dict[OperatorKey, list[tuple[str, nn.Parameter]]] = {}
    for key in keys:
        names = units[key.parameter_set.rsplit("/", 1)[0]].own[key.index]
        held[key] = [(name, split.parameters[name]) for name in names]
    kept = {id(parameter) for items in held.values() for _, parameter in items}
    with torch.no_grad():
        for parameter in split.parameters.values():
            if id(parameter) in kept:
                parameter.data = parameter.data.to(device=device, dtype=_float(parameter, dtype))
        for module in split.root.modules():
            _give_up(module, kept, dtype, device)
    return LocalParts(split=split, seed=seed, dtype=dtype, device=device, held=held)


def _weighted(loss: torch.Tensor, share: float) -> torch.Tensor:
    """Give the loss times its share: a mean over nothing, which is no number, has none."""
    return loss * share if share else torch.zeros_like(loss)


def recomputed(
    run: Callable[..., object], tensors: Sequence[torch.Tensor], device: torch.device
) -> object:
    """Give what `run` makes of the tensors; it is run again in the backward, as it was.

    A GPU's random numbers are the same then only if one of the tensors lies there, which none may:
    the first part of a model has the data alone.
    """
    there = torch.empty(0, device=device)
    return checkpoint(lambda _, *own: run(*own), there, *tensors, use_reentrant=False)


def _give_up(module: nn.Module, kept: set[int], dtype: torch.dtype, device: torch.device) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        if id(parameter) not in kept:
            zero = torch.zeros((), dtype=_float(parameter, dtype), device=device)
            empty = nn.Parameter(zero.expand(parameter.shape), requires_grad=False)
            module.register_parameter(name, empty)
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = buffer.to(device=device, dtype=_float(buffer, dtype))


def _float(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if tensor.is_floating_point() else tensor.dtype


def _number(seed: int, call: SliceCall) -> int:
    """Give a seed for the random numbers of one slice's forward, the same in a second one."""
    name = f"{seed}/{call.step}/{call.site.metaop}/{call.first_op}/{call.first_sample}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
