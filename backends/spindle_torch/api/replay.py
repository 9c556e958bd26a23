"""Runs some parts of a task: the task's own code, in which other leaves give what is handed in.

The code between leaves runs as it stands. A leaf that isn't of these parts isn't called: it gives
the value that another part gave, or, where nothing of these parts depends on it, zeros. After the
last step the run is broken off.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from spindle_sim.errors import ExecutionError
from spindle_torch.api.calls import intercepted
from spindle_torch.api.capture import Capture, plain_numbers
from spindle_torch.api.tally import tensors_of
from spindle_torch.api.values import Value

__all__ = ["Replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Runs parts of one task by its own forward."""

    task: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    leaves: Mapping[str, nn.Module]
    capture: Capture

    def run(
        self,
        steps: frozenset[int],
        given: Mapping[Value, torch.Tensor],
        batch: Mapping[str, torch.Tensor],
        *,
        samples: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[dict[Value, torch.Tensor], torch.Tensor | None]:
        """Give all values that these steps make, and the loss if its step is one of them."""
        director = _Director(
            capture=self.capture,
            steps=steps,
            given=given,
            samples=samples,
            dtype=dtype,
            device=device,
        )
        try:
            with intercepted(self.leaves, director):
                loss = self.task(batch)
        except _Finished:
            return director.made, None
        return director.made, loss


class _Finished(BaseException):
    """The last step is done. No mistake: user code that catches exceptions mustn't catch it."""


@dataclass(slots=True, kw_only=True)
class _Director:
    capture: Capture
    steps: frozenset[int]
    given: Mapping[Value, torch.Tensor]
    samples: int
    dtype: torch.dtype
    device: torch.device
    made: dict[Value, torch.Tensor] = field(default_factory=dict)
    _next: int = 0

    def call(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        index, self._next = self._next, self._next + 1
        known = self.capture.calls[index] if index < len(self.capture.calls) else None
        if known is None or known.leaf != name:
            expected = "nothing" if known is None else known.leaf
            raise ExecutionError(
                f"{name}: runs where {expected} ran when the model was split; what runs must not"
                " depend on the samples or on earlier steps"
            )
        if 2 * index in self.steps:
            leaves, _ = tree_flatten((arguments, keywords))
            for place, _ in known.entering:
                self.made[Value(index, place, enters=True)] = leaves[place]
            self._finish(2 * index)
        if 2 * index + 1 not in self.steps:
            leaves, _ = tree_flatten((arguments, keywords))
            return known.output(self._stand_ins(index, leaves))
        if known.entering:
            arguments, keywords = self._entered(index, arguments, keywords)
        made = forward(*arguments, **keywords)
        outputs, _ = tree_flatten(made)
        if plain_numbers(outputs) != plain_numbers(known.constants):
            raise ExecutionError(
                f"{name}: gives other plain numbers of Python beside its tensors than when the"
                " model was split, which other devices have as they were; give them as tensors"
            )
        for place, tensor in enumerate(tensors_of(outputs)):
            self.made[Value(index, place)] = tensor
        self._finish(2 * index + 1)
        return made

    def _entered(
        self, index: int, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves, spec = tree_flatten((arguments, keywords))
        for place, _ in self.capture.calls[index].entering:
            value = Value(index, place, enters=True)
            if value in self.given:
                leaves[place] = self.given[value]
        entered: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(leaves, spec)
        return entered

    def _stand_ins(self, index: int, leaves: list[Any]) -> dict[int, torch.Tensor]:
        call = self.capture.calls[index]
        tensors: dict[int, torch.Tensor] = {}
        returned = dict(call.returned)
        for place, shape in enumerate(call.shapes):
            if Value(index, place) in self.given:
                tensors[place] = self.given[Value(index, place)]
            elif place in returned:
                tensors[place] = leaves[returned[place]]
            else:
                tensors[place] = shape.zeros(self.samples, self.dtype, self.device)
        return tensors

    def _finish(self, step: int) -> None:
        if step == max(self.steps):
            raise _Finished
