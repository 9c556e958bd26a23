"""How far rounding takes float32's gradients from what they would be in exact arithmetic.

Some models make much of rounding: a chain of narrow layers whose sums nearly cancel passes on
hundreds of times what a number was off by. Then two plain computations in float32 that merely put
samples into other groups differ by more than 1e-5, as do those of one process and of many ranks.
How far off such gradients may be is measured on one plain process alone.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from spindle_sim.workload import Workload
from tests.spindle_torch.reference import Reference

__all__ = ["DRAWS", "FACTOR", "Rounding"]

DRAWS = 9
FACTOR = 2.0  # ranks add and multiply in another order: another draw of the same rounding


@dataclass(frozen=True)
class Rounding:
    """What rounding leaves of the gradients of a model, measured once it is asked for."""

    workload: Workload

    @cached_property
    def exact(self) -> dict[str, torch.Tensor]:
        """Give what float64 makes of the numbers that float32 has."""
        return self._gradients(torch.float64, 0)

    @cached_property
    def bounds(self) -> dict[str, float]:
        """Give how far from that each gradient may be.

        That is twice the most by which one plain process was off in nine computations, each with
        parameters that are a unit or two in the last place apart. A single one may be off by a
        tenth of what its neighbours are.
        """
        worst = dict.fromkeys(self.exact, 0.0)
        for draw in range(DRAWS):
            exact = self._gradients(torch.float64, draw) if draw else self.exact
            for name, gradient in self._gradients(torch.float32, draw).items():
                error = (gradient.double() - exact[name]).norm().item()
                worst[name] = max(worst[name], error)
        return {name: FACTOR * error for name, error in worst.items()}

    def _gradients(self, dtype: torch.dtype, draw: int) -> dict[str, torch.Tensor]:
        return Reference(self.workload, dtype, shaken=draw).step(0)[1]
