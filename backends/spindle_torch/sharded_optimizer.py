"""ZeRO: each rank of a parameter group holds and steps its range of the group's numbers.

A reduce-scatter gives each rank the sum of its range of the gradients: in stage 1 once, from stage
2 on behind each backward, to be added up; whole gradients are gone then. An all-gather gives it the
others' parameters: after the step, or in stage 3 when they are needed, and only for that long.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from spindle_torch.stepping import adamw

__all__ = ["GroupRange", "RangePart", "ShardedOptimizer"]

_GRADIENTS, _PARAMETERS = 2, 3  # the stages from which these are divided, too


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

    `numbers` are all numbers, in equal ranges: zeros at the end fill the last one. In `stage` 3
    `own` lies apart, and `numbers`, which the parameters and what autograd keeps of them are views
    of, has memory only while it is held.
    """

    parameters: tuple[torch.nn.Parameter, ...]
    numbers: torch.Tensor
    own: torch.Tensor
    begin: int
    parts: tuple[RangePart, ...]
    gradient: torch.Tensor | None  # of all numbers, where its memory is kept
    stage: int

    @classmethod
    def of(
        cls,
        parameters: Sequence[torch.nn.Parameter],
        position: int,
        num_ranks: int,
        *,
        stage: int = 1,
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
        begin, stage = position * length, stage if num_ranks > 1 else 1
        own = numbers[begin : begin + length]
        own = own.clone() if stage == _PARAMETERS else own
        made = cls(
            parameters=tuple(parameters),
            numbers=numbers,
            own=own,
            begin=begin,
            parts=_parts(parameters, own, begin),
            # Kept where it is filled at once, since fresh memory takes longer than the copy.
            gradient=torch.zeros_like(numbers) if stage < _GRADIENTS else None,
            stage=stage,
        )
        made.release()
        return made

    def hold(self) -> None:
        """Make room for all numbers, to be gathered into it."""
        storage = self.numbers.untyped_storage()
        if not storage.nbytes():
            storage.resize_(self.numbers.numel() * self.numbers.element_size())

    def release(self) -> None:
        """Give up the others' numbers in stage 3."""
        if self.is_divided:
            self.numbers.untyped_storage().resize_(0)

    def flat_gradient(self) -> torch.Tensor:
        """Give the parameters' gradients as one tensor, zeros at the end, and forget them."""
        gradients = [
            (torch.zeros_like(item) if item.grad is None else item.grad).flatten()
            for item in self.parameters
        ]
        count = sum(item.numel() for item in gradients)
        whole = self.gradient
        if whole is None:
            whole = self.numbers.new_empty(self.numbers.numel())
        torch.cat(gradients, out=whole[:count])
        whole[count:].zero_()
        for parameter in self.parameters:
            parameter.grad = None
        return whole

    def take_gradient(self, total: torch.Tensor) -> None:
        """Give the parts their numbers of the sum of this rank's range, to be added up."""
        begin = 0
        for part in self.parts:
            end = begin + part.numbers.numel()
            if part.numbers.grad is None:
                part.numbers.grad = total[begin:end]
            else:
                part.numbers.grad += total[begin:end]
            begin = end

    @property
    def is_divided(self) -> bool:
        """Whether this rank holds the parameters in part only."""
        return self.stage == _PARAMETERS

    @property
    def is_whole(self) -> bool:
        """Whether this rank has no others to share the group with."""
        return self.own.numel() == self.numbers.numel()


def _parts(
    parameters: Sequence[torch.nn.Parameter], numbers: torch.Tensor, begin: int
) -> tuple[RangePart, ...]:
    """Give the parts of a range of the group's numbers that begins there."""
    parts = []
    first, end = 0, begin + numbers.numel()
    fill = end  # at most: what is behind the parameters
    for parameter, count in [*((item, item.numel()) for item in parameters), (None, fill)]:
        low, high = max(begin, first), min(end, first + count)
        if low < high:
            own = torch.nn.Parameter(numbers[low - begin : high - begin])
            parts.append(RangePart(parameter=parameter, begin=low - first, numbers=own))
        first += count
    return tuple(parts)


@dataclass(slots=True, kw_only=True)
class ShardedOptimizer:
    """AdamW on this rank's range of each of its groups; `ranges` by index in the pool.

    A group that this rank is alone in waits for no sum: its gradients are taken where they lie.
    """

    ranges: Mapping[int, GroupRange]
    learning_rate: float
    _optimizer: torch.optim.Optimizer | None = field(init=False)

    def __post_init__(self) -> None:
        """Make the optimizer of the ranges' parts."""
        owned = [part.numbers for item in self.ranges.values() for part in item.parts]
        self._optimizer = adamw(owned, self.learning_rate) if owned else None

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

    def gradients(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Give the parameters that this rank steps numbers of, and those numbers' gradients."""
        for item in self.ranges.values():
            if item.is_whole and item.parts[0].numbers.grad is None:
                item.take_gradient(item.flat_gradient())
            for part in item.parts:
                if part.parameter is not None:
                    assert part.numbers.grad is not None, "a group's gradients weren't summed"
                    yield part.parameter, part.numbers.grad

    def step(self) -> None:
        """Step the ranges; the others' come by `ranges[group].numbers`, to be gathered."""
        if self._optimizer is None:
            return
        for _ in self.gradients():  # so that they are where the optimizer looks
            pass
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
