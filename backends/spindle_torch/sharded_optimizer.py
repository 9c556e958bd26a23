"""ZeRO stage 1: each rank of a parameter group holds and steps its range of the group's numbers.

Gradients are summed over the group as always, and whole on each rank: clipping needs them. What is
divided is the optimizer's state, and the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["GroupRange", "RangePart", "ShardedOptimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePart:
    """What a range has of one parameter: its flat numbers from `begin` on, as a parameter to step.

    Each has AdamW states of its own: parameters of one group may have been stepped more or less
    often. What fills the last range belongs to no parameter.
    """

    parameter: torch.nn.Parameter | None
    begin: int
    numbers: torch.nn.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRange:
    """A group's parameters as one flat tensor, of which `own` is this rank's range.

    `numbers` are all numbers, in equal ranges: zeros at the end fill the last one.
    """

    parameters: tuple[torch.nn.Parameter, ...]
    numbers: torch.Tensor
    own: torch.Tensor
    begin: int
    parts: tuple[RangePart, ...]

    @classmethod
    def of(
        cls, parameters: Sequence[torch.nn.Parameter], position: int, num_ranks: int
    ) -> "GroupRange":
        """Move the parameters into one tensor, in this order; they are views of it from then on."""
        count = sum(parameter.numel() for parameter in parameters)
        length = -(-count // num_ranks)
        numbers = parameters[0].new_zeros(length * num_ranks, requires_grad=False)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            numbers[begin:end] = parameter.detach().flatten()
            parameter.data = numbers[begin:end].view_as(parameter)
            begin = end
        begin = position * length
        return cls(
            parameters=tuple(parameters),
            numbers=numbers,
            own=numbers[begin : begin + length],
            begin=begin,
            parts=_parts(parameters, numbers, begin, begin + length),
        )

    def take_gradient(self) -> None:
        """Give the parts their numbers of the parameters' gradients, and forget those."""
        for part in self.parts:
            count = part.numbers.numel()
            if part.parameter is None or part.parameter.grad is None:
                part.numbers.grad = torch.zeros_like(part.numbers)
            else:
                flat = part.parameter.grad.flatten()
                part.numbers.grad = flat[part.begin : part.begin + count]
        for parameter in self.parameters:
            parameter.grad = None


def _parts(
    parameters: Sequence[torch.nn.Parameter], numbers: torch.Tensor, begin: int, end: int
) -> tuple[RangePart, ...]:
    """Give the parts of the range from `begin` to `end` of the group's numbers."""
    parts = []
    first = 0
    fill = numbers.numel() - sum(parameter.numel() for parameter in parameters)
    for parameter, count in [*((item, item.numel()) for item in parameters), (None, fill)]:
        low, high = max(begin, first), min(end, first + count)
        if low < high:
            own = torch.nn.Parameter(numbers[low:high])
            parts.append(RangePart(parameter=parameter, begin=low - first, numbers=own))
        first += count
    return tuple(parts)


@dataclass(slots=True, kw_only=True)
class ShardedOptimizer:
    """AdamW on this rank's range of each of its groups; `ranges` by index in the pool."""

    ranges: Mapping[int, GroupRange]
    learning_rate: float
    _optimizer: torch.optim.Optimizer | None = field(init=False)

    def __post_init__(self) -> None:
        """Make the optimizer of the ranges' parts."""
        owned = [part.numbers for item in self.ranges.values() for part in item.parts]
        self._optimizer = (
            torch.optim.AdamW(owned, lr=self.learning_rate, foreach=False) if owned else None
        )

    @property
    def num_state_numbers(self) -> int:
        """How many numbers the optimizer's states have on this rank: two for each it steps."""
        if self._optimizer is None:
            return 0
        return sum(
            value.numel()
            for state in self._optimizer.state.values()
            for value in state.values()
            if value.dim()  # not the counter of steps
        )

    def state(self, part: RangePart) -> dict[str, torch.Tensor]:
        """Give the states of a part, to be read or set; empty before its first step."""
        assert self._optimizer is not None, "a range has parts, so that something steps them"
        states: dict[str, torch.Tensor] = self._optimizer.state[part.numbers]
        return states

    def step(self) -> None:
        """Step the ranges; the others' come by `ranges[group].numbers`, to be gathered."""
        if self._optimizer is None:
            return
        for item in self.ranges.values():
            item.take_gradient()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
