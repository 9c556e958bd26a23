"""Writing down what happened: spans as they end, laid on streams when all is over.

Much of it repeats, for many devices and micro-batches: until the end it is kept once, not as spans.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Record", "Subject"]


class Subject(NamedTuple):
    """What a span of communication is about, whenever it is."""

    kind: Kind
    phase: Phase
    slice: str = ""
    metaop: str = ""
    task: str = ""
    size_bytes: float = 0.0
    peer: int | None = None


class _Operated(NamedTuple):
    """A forward or backward of a slice, on all of its devices."""

    item: Slice
    metaop: MetaOp
    phase: Phase
    start_s: float
    end_s: float
    micro_batch: int
    wait_s: float


# The constructor of a frozen dataclass looks each field up by name, which for a million spans takes
# longer than to simulate them; these know their field.
_SETTERS: tuple[Callable[[Span, object], None], ...] = tuple(
    Span.__dict__[item.name].__set__ for item in fields(Span)
)
_Note = tuple[float, float, int, int]  # start, end, number of its subject, micro-batch


@dataclass(slots=True)
class Record:
    """What happened so far."""

    _operated: list[_Operated] = field(default_factory=list)
    _stepped: dict[int, Span] = field(default_factory=dict)
    _subjects: dict[Subject, int] = field(default_factory=dict)
    _notes: dict[int, list[_Note]] = field(default_factory=dict)  # by device

    def operation(
        self,
        item: Slice,
        metaop: MetaOp,
        phase: Phase,
        start_s: float,
        *,
        end_s: float,
        micro_batch: int = 0,
        wait_s: float = 0.0,
    ) -> None:
        """Note that every device of a slice computed."""
        done = _Operated(item, metaop, phase, start_s, end_s, micro_batch, wait_s)
        self._operated.append(done)

    def optimizer(self, device: int, start_s: float, end_s: float) -> None:
        """Note that a device stepped its optimizer."""
        self._stepped[device] = Span(
            device=device, start_s=start_s, end_s=end_s, kind=Kind.OPTIMIZER, phase=Phase.STEP
        )

    def sync(self, devices: Iterable[int], start_s: float, end_s: float, size_bytes: float) -> None:
        """Note that devices synchronized vectors of `size_bytes`."""
        number = self.subject(Subject(Kind.SYNC, Phase.SYNC, size_bytes=size_bytes))
        for device in devices:
            self.communication(device, start_s, end_s, number)

    def subject(self, subject: Subject) -> int:
        """Give the number of what communication is about."""
        return self._subjects.setdefault(subject, len(self._subjects))

    def communication(
        self, device: int, start_s: float, end_s: float, subject: int, *, micro_batch: int = 0
    ) -> None:
        """Note that a device communicated; `subject` is the number of what about."""
        self._notes.setdefault(device, []).append((start_s, end_s, subject, micro_batch))

    def spans(self) -> tuple[Span, ...]:
        """Give all spans by device, stream and start, none overlapping on a stream."""
        operated: dict[int, list[_Operated]] = {}
        for done in self._operated:
            for device in done.item.devices:
                operated.setdefault(device, []).append(done)
        subjects = list(self._subjects)
        names = [(subject.kind, subject.slice) for subject in subjects]
        ordered: list[Span] = []
        for device in sorted(operated.keys() | self._notes.keys() | self._stepped.keys()):
            computed = [_computed(device, done) for done in operated.get(device, ())]
            if device in self._stepped:
                computed.append(self._stepped[device])
            ordered += sorted(computed, key=attrgetter("start_s", "end_s"))
            ordered += _laid(device, self._notes.get(device, []), subjects, names)
        return tuple(ordered)


def _span(*values: object) -> Span:
    """Give a span of these values, in the order of its fields."""
    span = object.__new__(Span)
    for put, value in zip(_SETTERS, values, strict=True):
        put(span, value)
    return span


def _computed(device: int, done: _Operated) -> Span:
    return _span(
        device,
        done.start_s,
        done.end_s,
        Kind.COMPUTE,
        done.phase,
        done.metaop.id,
        done.metaop.task,
        done.item.id,
        0,
        0.0,
        None,
        done.wait_s,
        done.micro_batch,
    )


def _laid(
    device: int,
    notes: list[_Note],
    subjects: Sequence[Subject],
    names: Sequence[tuple[Kind, str]],
) -> Iterable[Span]:
    """Lay the communication of one device on streams: each takes the lowest one that is free.

    What starts and ends with others comes in the order of `names`.
    """
    notes.sort(key=lambda note: (note[0], note[1], names[note[2]]))
    streams: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for start_s, end_s, number, micro_batch in notes:
        while busy and busy[0][0] <= start_s:
            heappush(free, heappop(busy)[1])
        if free:
            stream = heappop(free)
        else:
            streams.append([])
            stream = len(streams)
        heappush(busy, (end_s, stream))
        kind, phase, slice_id, metaop, task, size_bytes, peer = subjects[number]
        streams[stream - 1].append(
            _span(
                device,
                start_s,
                end_s,
                kind,
                phase,
                metaop,
                task,
                slice_id,
                stream,
                size_bytes,
                peer,
                0.0,
                micro_batch,
            )
        )
    return chain.from_iterable(streams)
