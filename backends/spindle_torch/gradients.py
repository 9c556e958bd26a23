"""One rank's gradients: flat for sums, counted once for the norm, and the step they lead to."""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import torch

from spindle_torch.drawing import Shard
from spindle_torch.model import Model
from spindle_torch.pool import PoolGroup
from spindle_torch.sharded_optimizer import ShardedOptimizer

__all__ = ["Gradients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Those of the parameters that a rank holds; groups are indexes of `pool`."""

    rank: int
    device: torch.device
    model: Model
    pool: tuple[PoolGroup, ...]
    optimizer: torch.optim.Optimizer | ShardedOptimizer | None
    _buffers: dict[int, torch.Tensor] = field(default_factory=dict)

    def flat(self, group: int) -> torch.Tensor:
        """Give a group's gradients as one flat tensor, in the order of names."""
        if isinstance(self.optimizer, ShardedOptimizer):
            return self.optimizer.ranges[group].flat_gradient()
        parts = [_gradient(item).flatten() for item in self._parameters(group)]
        if group not in self._buffers:  # kept, since fresh memory takes longer than the copy
            self._buffers[group] = torch.cat(parts)
        else:
            torch.cat(parts, out=self._buffers[group])
        return self._buffers[group]

    def take(self, group: int, total: torch.Tensor) -> None:
        """Cut the sum up again."""
        if isinstance(self.optimizer, ShardedOptimizer):
            self.optimizer.ranges[group].take_gradient(total)
            return
        begin = 0
        for parameter in self._parameters(group):
            end = begin + parameter.numel()
            parameter.grad = total[begin:end].view_as(parameter)
            begin = end

    def squared_norm(self) -> torch.Tensor:
        """Give this rank's part of the squared norm of all gradients, in float64."""
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for gradient in self._counted_gradients():
            total += gradient.double().square().sum()
        return total

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        if isinstance(self.optimizer, ShardedOptimizer):
            for _, gradient in self.optimizer.gradients():
                gradient.mul_(factor)
            return
        for index, group in enumerate(self.pool):
            if self.rank in group.devices:
                for parameter in self._parameters(index):
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)

    def step(self) -> None:
        """Step AdamW; a parameter that no sample touched has a gradient of zero."""
        if self.optimizer is None:
            return
        if isinstance(self.optimizer, ShardedOptimizer):
            self.optimizer.step()
            return
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = _gradient(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def used_by(self, operators: Set[tuple[str, int]], group: int) -> list[torch.nn.Parameter]:
        """Give the parameters of a group that belong to some operators: sets and indexes."""
        return [
            parameter
            for key in self.pool[group].operators
            if (key.parameter_set, key.index) in operators
            for _, parameter in self.model.named_parameters(key)
        ]

    def _parameters(self, group: int) -> list[torch.nn.Parameter]:
        return [
            parameter
            for key in self.pool[group].operators
            for _, parameter in self.model.named_parameters(key)
        ]

    def _counted_gradients(self) -> Iterator[torch.Tensor]:
        """Give the gradients that this rank counts for all: each number is counted once.

        The first device of a group counts for all of them; with ZeRO-1 each counts its range.
        Shards add up; what is whole on every shard counts on the first.
        """
        divided = isinstance(self.optimizer, ShardedOptimizer)
        counted = {
            parameter: None
            for group in self.pool
            if self.rank in group.devices and (divided or group.devices[0] == self.rank)
            for key in group.operators
            for _, parameter in self.model.named_parameters(key)
            if key.shard == 0 or isinstance(parameter, Shard)
        }
        if isinstance(self.optimizer, ShardedOptimizer):
            for parameter, gradient in self.optimizer.gradients():
                if parameter in counted:
                    yield gradient
            return
        for parameter in counted:
            yield _gradient(parameter)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
