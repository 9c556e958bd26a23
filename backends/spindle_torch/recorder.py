"""Notes what a rank does and when, at next to no cost: a mark and a tuple for each span.

On GPUs marks are CUDA events in the current stream, read once the iteration is over: nothing is
synchronized for their sake, and a span is when the device did it, not when it was told to. What a
span waits for is on the stream too, since NCCL's waits are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from spindle_sim.timeline import Kind, Phase
from spindle_torch.events import Event, Origin

__all__ = ["Mark", "Recorder"]

Mark = float | torch.cuda.Event
_MILLISECONDS = 1e3


class _Note(NamedTuple):
    kind: Kind
    phase: Phase
    start: Mark
    end: Mark
    slice: str
    size_bytes: float
    peers: tuple[int, ...]
    awaits: tuple[Origin, ...]
    group: int
    launches: bool
    micro_batch: int


@dataclass(slots=True)
class Recorder:
    """The notes of one iteration, on `clock_s`; none are taken unless `enabled`.

    `is_waiting` tells whether the rank waits for others, for whoever has to say why it failed.
    """

    clock_s: Callable[[], float]
    device: torch.device
    enabled: bool = True
    is_waiting: bool = False
    _notes: list[_Note] = field(default_factory=list)
    _base: torch.cuda.Event | None = None
    _base_s: float = 0.0

    def begin(self) -> float:
        """Forget the notes of the last iteration; give when this one begins."""
        self._notes = []
        if self.device.type == "cuda":
            self._base = _recorded_event()
            self._base.synchronize()
        self._base_s = self.clock_s()
        return self._base_s

    def mark(self) -> Mark:
        """Give this instant, or the one at which the device gets here."""
        if not self.enabled:
            return 0.0
        if self.device.type != "cuda":
            return self.clock_s()
        return _recorded_event()

    def note(
        self,
        kind: Kind,
        phase: Phase,
        start: Mark,
        *,
        slice_id: str = "",
        size_bytes: float = 0.0,
        peers: tuple[int, ...] = (),
        awaits: tuple[Origin, ...] = (),
        group: int = -1,
        launches: bool = False,
        micro_batch: int = 0,
    ) -> None:
        """Note what went on from `start` until now."""
        if self.enabled:
            end = self.mark()
            self._notes.append(
                _Note(
                    kind,
                    phase,
                    start,
                    end,
                    slice_id,
                    size_bytes,
                    peers,
                    awaits,
                    group,
                    launches,
                    micro_batch,
                )
            )

    def events(self) -> tuple[Event, ...]:
        """Give what was noted, in seconds of the clock; a GPU has to be done by then."""
        return tuple(
            Event(
                kind=note.kind,
                phase=note.phase,
                start_s=self._seconds(note.start),
                end_s=self._seconds(note.end),
                slice=note.slice,
                size_bytes=note.size_bytes,
                peers=note.peers,
                awaits=note.awaits,
                group=note.group,
                launches=note.launches,
                micro_batch=note.micro_batch,
            )
            for note in self._notes
        )

    def _seconds(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark
        assert self._base is not None, "no iteration has begun"
        return self._base_s + float(self._base.elapsed_time(mark)) / _MILLISECONDS


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
