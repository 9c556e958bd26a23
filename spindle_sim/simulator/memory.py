"""Memory followed through an iteration: states all the time, activations from forward to backward.

Each device runs its backwards in reverse order, so its activations are a stack: what was kept last
is freed first, and the level returns to exactly what it was.
"""

from dataclasses import dataclass, field

from spindle_sim.estimate.memory import activation_bytes, working_bytes
from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import MemorySample

__all__ = ["MemoryTrack", "kept_bytes", "recomputed_bytes"]


def kept_bytes(item: Slice, metaop: MetaOp) -> float:
    """Give what each device of a slice keeps for its backward."""
    return activation_bytes(
        metaop,
        num_ops=item.num_ops,
        dp=item.dp,
        tp=item.tp,
        recompute=item.recompute,
        first_op=item.first_op,
    )


def recomputed_bytes(item: Slice, metaop: MetaOp) -> float:
    """Give what each device of a slice holds besides, while its backward runs."""
    return working_bytes(metaop, dp=item.dp, tp=item.tp) if item.recompute else 0.0


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
        """Add something: the activations of a forward, or what a backward recomputes."""
        self._levels.append(self._levels[-1] + size_bytes)
        self._sample(time_s)

    def free(self, time_s: float) -> None:
        """Drop what was added last."""
        self._levels.pop()
        self._sample(time_s)

    def _sample(self, time_s: float) -> None:
        self.samples.append(MemorySample(device=self.device, time_s=time_s, bytes=self._levels[-1]))
