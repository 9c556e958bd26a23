"""What a forward of a task records for its backward, leaf by leaf, in the leaf itself alone."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import checkpoint

from spindle_sim.errors import InputError
from spindle_torch.api.blame import blaming
from spindle_torch.api.calls import intercepted
from spindle_torch.api.kept import storage_of
from spindle_torch.api.tally import number_bytes

__all__ = ["Recorded", "record"]

_CHECKPOINT = checkpoint.__file__
_CALLING = nn.modules.module.__file__


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The bytes that each call of a leaf keeps of one sample, and what the loss's gradient reaches.

    `reached` are the leaves of which it reaches a parameter; `has_gradient` is whether it has one.
    """

    saved: tuple[float, ...]
    has_gradient: bool
    reached: frozenset[str]


def record(
    name: str,
    task: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    leaves: Mapping[str, nn.Module],
    batch: Mapping[str, torch.Tensor],
    samples: int,
) -> Recorded:
    """Run a forward and, where there are numbers, a backward of the task.

    Raises:
        InputError: `torch.utils.checkpoint` is around a leaf and other code, the backward fails,
            or gradients are sparse.
    """
    watcher = _SavingWatcher()
    with torch.enable_grad(), intercepted(leaves, watcher), watcher.packing():
        loss = task(batch)
    return Recorded(
        saved=tuple(size_bytes / samples for size_bytes in watcher.saved),
        has_gradient=loss.requires_grad,
        reached=_reached(name, loss, leaves) if loss.requires_grad else frozenset(),
    )


def _reached(name: str, loss: torch.Tensor, leaves: Mapping[str, nn.Module]) -> frozenset[str]:
    if isinstance(loss, FakeTensor):
        return frozenset(leaves)  # which isn't trained
    held = [
        (leaf, parameter)
        for leaf, module in leaves.items()
        for parameter in module.parameters()
        if parameter.requires_grad
    ]
    with blaming(f"task {name!r}: the backward of its loss"):
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            loss, [item for _, item in held], allow_unused=True
        )
    for (leaf, _), gradient in zip(held, found, strict=True):
        if gradient is not None and gradient.layout != torch.strided:
            raise InputError(
                f"{leaf}: gives its parameters sparse gradients, which can't be summed over"
                " devices here; make them dense (sparse=False)"
            )
    return frozenset(
        leaf for (leaf, _), gradient in zip(held, found, strict=True) if gradient is not None
    )


class _SavingWatcher:
    def __init__(self) -> None:
        self.saved: list[float] = []
        self._seen: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self._within = False

    def call(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        if _is_recomputed_with_others():
            raise InputError(
                f"{name}: lies within torch.utils.checkpoint, which would run it once more in the"
                " backward, on devices that don't have it, too; leave that out (transformers:"
                " gradient_checkpointing_disable()), since the plan says what is recomputed"
            )
        self.saved.append(0.0)
        self._within = True
        made = forward(*arguments, **keywords)
        self._within = False
        return made

    @contextmanager
    def packing(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed):
            yield

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if self._within and not is_parameter and storage_of(tensor) not in self._seen:
            self._seen.add(storage_of(tensor))
            self._alive.append(tensor)
            self.saved[-1] += number_bytes(tensor)
        return tensor


def _is_recomputed_with_others() -> bool:
    """Tell whether torch's checkpoint will call the leaf again, and more than the leaf alone."""
    frame = sys._getframe(2)  # the wrapper's, of the leaf's forward
    direct = True
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == _CHECKPOINT:
            return not direct or not torch.is_grad_enabled()
        direct = direct and frame.f_code.co_filename == _CALLING
    return False
