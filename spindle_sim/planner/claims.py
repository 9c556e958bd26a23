"""What the other slices of a stage would lose: each wants to stay in the islands of its samples.

A slice claims as many devices there as it needs, not particular ones: moving within an island is
cheap. An island can give away devices until fewer are left than are claimed.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spindle_sim.planner.affinity import Group

__all__ = ["Claims"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
ROUNDING = 1e-6


@dataclass(slots=True)
class Claims:
    """Claims of the slices of one stage that aren't placed yet, by island."""

    num_islands: int
    free: Bools  # by device
    needed: Floats = field(init=False)  # devices claimed
    seconds: Floats = field(init=False)  # lost if none of them is left

    def __post_init__(self) -> None:
        """Begin without claims."""
        self.needed, self.seconds = np.zeros((2, self.num_islands))

    def change(self, group: Group, num_devices: int, seconds: float) -> None:
        """Count a slice that wants to stay with a group; negative figures take it back."""
        islands = group.ranks.ravel() * self.num_islands // len(self.free)
        shares = np.bincount(islands, minlength=self.num_islands) / len(islands)
        self.needed += num_devices * shares
        self.seconds += seconds * shares

    def lost_s(self, group: Group) -> float:
        """Give what the others lose if the group is taken."""
        islands = group.ranks.ravel() * self.num_islands // len(self.free)
        taken = np.bincount(islands, minlength=self.num_islands)
        left = self.free.reshape(self.num_islands, -1).sum(axis=1) - taken
        short = np.clip(self.needed - left, 0.0, taken)
        return float((short * self._each_s()).sum())

    def by_device(self, scores: Floats) -> Floats:
        """Give what is lost with each device, if those of low score are taken first."""
        free = self.free.reshape(self.num_islands, -1)
        rows = np.where(free, scores.reshape(free.shape), np.inf)
        rank = np.argsort(np.argsort(rows, axis=1, kind="stable"), axis=1, kind="stable")
        spare = free.sum(axis=1) - self.needed
        lost: Floats = np.where(rank >= np.floor(spare)[:, None], self._each_s()[:, None], 0.0)
        return lost.ravel()

    def _each_s(self) -> Floats:
        # What is left of claims taken back is rounding: no device is claimed there.
        claimed = np.where(self.needed > ROUNDING, self.needed, np.inf)
        return self.seconds / claimed
