"""Memory followed through an iteration: states all the time, activations from forward to backward.

What a device keeps is known by who keeps it. Where it goes backward in reverse order, that is a
stack; a pipeline frees what it kept first. When all is freed, the level is exactly what it was.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from spindle_sim.estimate.memory import activation_bytes, working_bytes
from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import MemorySample

__all__ = ["MemoryTrack", "kept_bytes", "recomputed_bytes"]


def kept_bytes(item: Slice, metaop: MetaOp, micro_batches: int = 1) -> float:
    """Give what each device of a slice keeps of a micro-batch for its backward."""
    return activation_bytes(
        metaop,
        num_ops=item.num_ops,
        dp=item.dp,
        tp=item.tp,
        recompute=item.recompute,
        first_op=item.first_op,
        micro_batches=micro_batches,
        selective=item.selective,
        sequence_parallel=item.sequence_parallel,
    )


def recomputed_bytes(item: Slice, metaop: MetaOp, micro_batches: int = 1) -> float:
    """Give what each device of a slice holds besides, while its backward runs."""
    if not item.recompute:
        return 0.0
    return working_bytes(
        metaop,
        dp=item.dp,
        tp=item.tp,
        micro_batches=micro_batches,
        sequence_parallel=item.sequence_parallel,
    )


@dataclass(slots=True)
class MemoryTrack:
    """The levels so far of a device, or of several that are alike."""

    states_bytes: float
    _samples: list[tuple[float, float]] = field(default_factory=list)
    _keys: list[Hashable] = field(default_factory=list)
    _sizes: list[float] = field(default_factory=list)
    _levels: list[float] = field(default_factory=list)  # one more than keys: before, and after each

    def __post_init__(self) -> None:
        """Begin with the states alone."""
        self._levels = [self.states_bytes]
        self._sample(0.0)

    def keep(self, time_s: float, size_bytes: float, key: Hashable) -> None:
        """Add something: the activations of a forward, or what a backward recomputes."""
        self._keys.append(key)
        self._sizes.append(size_bytes)
        self._levels.append(self._levels[-1] + size_bytes)
        self._sample(time_s)

    def free(self, time_s: float, key: Hashable) -> None:
        """Drop what was added last under a key."""
        place = len(self._keys) - 1
        while self._keys[place] != key:
            place -= 1
        del self._keys[place], self._sizes[place], self._levels[place + 1 :]
        for size_bytes in self._sizes[place:]:
            self._levels.append(self._levels[-1] + size_bytes)
        self._sample(time_s)

    def samples(self, device: int) -> Iterable[MemorySample]:
        """Give the levels as those of one device."""
        for time_s, size_bytes in self._samples:
            yield MemorySample(device=device, time_s=time_s, bytes=size_bytes)

    def _sample(self, time_s: float) -> None:
        self._samples.append((time_s, self._levels[-1]))
