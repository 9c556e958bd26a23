"""Random tensors by name: the same name and seed give the same bits on every rank."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Drawer", "Shard", "drawn_normal", "drawn_tokens", "seed_of"]


class Shard(nn.Parameter):
    """One of several equal parts of a parameter along the dimension `divided`.

    What isn't divided is whole on each shard, and no `Shard`.
    """

    divided: int


def drawn_normal(name: str, seed: int, shape: Sequence[int]) -> torch.Tensor:
    """Give standard normal numbers in float64."""
    return torch.randn(tuple(shape), generator=_generator(name, seed), dtype=torch.float64)


def drawn_tokens(name: str, seed: int, shape: Sequence[int], vocabulary: int) -> torch.Tensor:
    """Give whole numbers from 0 to below `vocabulary`."""
    return torch.randint(vocabulary, tuple(shape), generator=_generator(name, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawer:
    """Makes the parameters of one operator, or its shard `rank` of `size`.

    A parameter is drawn whole, in float64, and then cut and rounded: shards fit together to the
    same model whatever the degree of tensor parallelism.
    """

    name: str  # "module/block/index"
    seed: int
    dtype: torch.dtype
    device: torch.device
    trained: bool = True
    rank: int = 0
    size: int = 1

    def normal(
        self, name: str, shape: Sequence[int], scale: float, *, divided: int | None = None
    ) -> nn.Parameter:
        """Give a normal parameter; dimension `divided` is cut into the shards."""
        return self._parameter(
            scale * drawn_normal(f"{self.name}/{name}", self.seed, shape), divided
        )

    def constant(
        self, shape: Sequence[int], value: float, *, divided: int | None = None
    ) -> nn.Parameter:
        """Give a parameter that is the same everywhere."""
        return self._parameter(torch.full(tuple(shape), value, dtype=torch.float64), divided)

    def _parameter(self, whole: torch.Tensor, divided: int | None) -> nn.Parameter:
        if divided is None or self.size == 1:
            return nn.Parameter(self._own(whole), requires_grad=self.trained)
        own = self._own(whole.chunk(self.size, dim=divided)[self.rank])
        shard = Shard(own, requires_grad=self.trained)
        shard.divided = divided
        return shard

    def _own(self, drawn: torch.Tensor) -> torch.Tensor:
        return drawn.to(dtype=self.dtype, device=self.device, copy=True).contiguous()


def seed_of(name: str, seed: int) -> int:
    """Give a seed of its own for what has a name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _generator(name: str, seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed_of(name, seed))
    return generator
