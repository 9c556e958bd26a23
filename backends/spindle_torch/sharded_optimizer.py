"""ZeRO stage 1: each rank of a parameter group holds and steps its range of the group's numbers.

Gradients are summed over the group as always, and whole on each rank: clipping needs them. What is
divided is the optimizer's state, and the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["GroupRange", "ShardedOptimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRange:
    """A group's parameters as one flat tensor, of which `own` is this rank's range.

    `numbers` are all numbers, in equal ranges: zeros at the end fill the last one.
    """

    parameters: tuple[torch.nn.Parameter, ...]
    numbers: torch.Tensor
    own: torch.nn.Parameter
    begin: int

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
            own=torch.nn.Parameter(numbers[begin : begin + length]),
            begin=begin,
        )

    def take_gradient(self) -> None:
        """Give `own` its part of the parameters' gradients, and forget those."""
        parts = [
            (torch.zeros_like(item) if item.grad is None else item.grad).flatten()
            for item in self.parameters
        ]
        gradient = torch.zeros_like(self.own)
        whole = torch.cat(parts)[self.begin : self.begin + len(gradient)]
        gradient[: len(whole)] = whole
        self.own.grad = gradient
        for parameter in self.parameters:
            parameter.grad = None


@dataclass(slots=True, kw_only=True)
class ShardedOptimizer:
    """AdamW on this rank's range of each of its groups; `ranges` by index in the pool."""

    ranges: Mapping[int, GroupRange]
    learning_rate: float
    _optimizer: torch.optim.Optimizer | None = field(init=False)

    def __post_init__(self) -> None:
        """Make the optimizer of the ranges."""
        owned = [item.own for item in self.ranges.values()]
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

    def step(self) -> None:
        """Step the ranges; the others' come by `ranges[group].numbers`, to be gathered."""
        if self._optimizer is None:
            return
        for item in self.ranges.values():
            item.take_gradient()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
