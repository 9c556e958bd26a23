"""Memory followed through an iteration: states all the time, activations from forward to backward.

Each device runs its backwards in reverse order, so its activations are a stack: what was kept last
is freed first, and the level returns to exactly what it was.
"""

from dataclasses import dataclass, field

from spindle_sim.plan import Backward, MetaOp, Slice
from spindle_sim.timeline import MemorySample

__all__ = ["MemoryTrack", "slice_activation_bytes"]


def slice_activation_bytes(item: Slice, metaop: MetaOp) -> float:
    """Give what each device of a slice keeps for its backward."""
    if metaop.backward is Backward.NONE:
        return 0.0
    samples = metaop.batch / item.dp
    if item.recompute:
        return item.num_ops * samples * metaop.input_bytes
    kept = metaop.saved_bytes / item.tp + metaop.saved_replicated_bytes
    return item.num_ops * samples * kept


@dataclass(slots=True)
class MemoryTrack:
    """The levels of one device so far."""

    device: int
    states_bytes: float
    samples: list[MemorySample] = field(default_factory=list)
    _levels: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the states alone."""
        self._levels = [self.states_bytes]
        self._sample(0.0)

    def keep(self, time_s: float, size_bytes: float) -> None:
        """Add the activations of a forward that begins."""
        self._levels.append(self._levels[-1] + size_bytes)
        self._sample(time_s)

    def free(self, time_s: float) -> None:
        """Drop the activations kept last: their backward has ended."""
        self._levels.pop()
        self._sample(time_s)

    def _sample(self, time_s: float) -> None:
        level = MemorySample(device=self.device, time_s=time_s, bytes=self._levels[-1])
        # One sample per instant, the last level of it.
        if self.samples and self.samples[-1].time_s == time_s and time_s > 0.0:
            self.samples[-1] = level
        else:
            self.samples.append(level)
