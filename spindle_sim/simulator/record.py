"""Writing down what happened: spans as they end, laid on streams when all is over.

Much of it repeats, for many devices and micro-batches: until the end it is kept once, not as spans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Part", "Record", "Subject"]


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


class Part(NamedTuple):
    """What one device does in a transfer: the number of its subject, and which messages are its."""

    device: int
    subject: int
    messages: tuple[int, ...]


class _Communicated(NamedTuple):
    """A transfer, with when each of its messages ended."""

    parts: Sequence[Part]
    start_s: float
    ends_s: Sequence[float]
    micro_batch: int


# Start, end, what of those that start and end together comes first, and next, number of its
# subject, micro-batch.
_Note = tuple[float, float, tuple[Kind, str], int, int, int]
_Values = tuple[
    int, float, float, Kind, Phase, str, str, str, int, float, int | None, float, int
]  # of a span, in the order of its fields


class _Draft:
    """A span that is being written; it has the very same fields, so that it can become one.

    The constructor of a frozen dataclass looks each field up by name, which for a million spans
    takes longer than to simulate them.
    """

    __slots__ = tuple(Span.__slots__)

    def __init__(self, values: _Values) -> None:
        (
            self.device,
            self.start_s,
            self.end_s,
            self.kind,
            self.phase,
            self.metaop,
            self.task,
            self.slice,
            self.stream,
            self.bytes,
            self.peer,
            self.wait_s,
            self.micro_batch,
        ) = values


@dataclass(slots=True)
class Record:
    """What happened so far, or if `silent` only when the last of it ended: `last_s`."""

    silent: bool = False
    last_s: float = 0.0
    _operated: list[_Operated] = field(default_factory=list)
    _stepped: dict[int, Span] = field(default_factory=dict)
    _subjects: dict[Subject, int] = field(default_factory=dict)
    _communicated: list[_Communicated] = field(default_factory=list)

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
        self.last_s = max(self.last_s, end_s)
        if not self.silent:
            done = _Operated(item, metaop, phase, start_s, end_s, micro_batch, wait_s)
            self._operated.append(done)

    def optimizer(self, device: int, start_s: float, end_s: float) -> None:
        """Note that a device stepped its optimizer."""
        self.last_s = max(self.last_s, end_s)
        self._stepped[device] = Span(
            device=device, start_s=start_s, end_s=end_s, kind=Kind.OPTIMIZER, phase=Phase.STEP
        )

    def sync(self, devices: Iterable[int], start_s: float, end_s: float, size_bytes: float) -> None:
        """Note that devices synchronized vectors of `size_bytes`."""
        number = self.subject(Subject(Kind.SYNC, Phase.SYNC, size_bytes=size_bytes))
        self.transfer([Part(device, number, (0,)) for device in devices], start_s, (end_s,))

    def subject(self, subject: Subject) -> int:
        """Give the number of what communication is about."""
        return self._subjects.setdefault(subject, len(self._subjects))

    def transfer(
        self,
        parts: Sequence[Part],
        start_s: float,
        ends_s: Sequence[float],
        *,
        micro_batch: int = 0,
    ) -> None:
        """Note that devices communicated; `ends_s` are of the messages."""
        self.last_s = max(self.last_s, *ends_s) if parts else self.last_s
        if not self.silent:
            self._communicated.append(_Communicated(parts, start_s, ends_s, micro_batch))

    def spans(self) -> tuple[Span, ...]:
        """Give all spans by device, stream and start, none overlapping on a stream."""
        operated: dict[int, list[_Operated]] = {}
        for done in self._operated:
            for device in done.item.devices:
                operated.setdefault(device, []).append(done)
        subjects = list(self._subjects)
        notes = self._notes(subjects)
        ordered: list[Span] = []
        for device in sorted(operated.keys() | notes.keys() | self._stepped.keys()):
            computed = [_computed(device, done) for done in operated.get(device, ())]
            if device in self._stepped:
                computed.append(self._stepped[device])
            ordered += sorted(computed, key=attrgetter("start_s", "end_s"))
            ordered += _laid(device, notes.pop(device, []), subjects)
        return tuple(ordered)

    def _notes(self, subjects: Sequence[Subject]) -> dict[int, list[_Note]]:
        """Give the communication of each device."""
        names = [(subject.kind, subject.slice) for subject in subjects]
        notes: dict[int, list[_Note]] = {}
        for count, (parts, start_s, ends_s, micro_batch) in enumerate(self._communicated):
            for device, number, messages in parts:
                end_s = ends_s[messages[0]]
                if len(messages) > 1:
                    end_s = max([ends_s[message] for message in messages])
                note = start_s, end_s, names[number], count, number, micro_batch
                if device in notes:
                    notes[device].append(note)
                else:
                    notes[device] = [note]
        return notes


def _span(values: _Values) -> Span:
    """Give a span of these values."""
    draft = _Draft(values)
    draft.__class__ = Span  # type: ignore[assignment]
    return draft  # type: ignore[return-value]


def _computed(device: int, done: _Operated) -> Span:
    item, metaop, phase, start_s, end_s, micro_batch, wait_s = done
    names = metaop.id, metaop.task, item.id
    return _span(
        (device, start_s, end_s, Kind.COMPUTE, phase, *names, 0, 0.0, None, wait_s, micro_batch)
    )


def _laid(device: int, notes: list[_Note], subjects: Sequence[Subject]) -> Iterable[Span]:
    """Lay the communication of one device on streams: each takes the lowest one that is free."""
    notes.sort()
    streams: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for start_s, end_s, _, _, number, micro_batch in notes:
        while busy and busy[0][0] <= start_s:
            heappush(free, heappop(busy)[1])
        if free:
            stream = heappop(free)
        else:
            streams.append([])
            stream = len(streams)
        heappush(busy, (end_s, stream))
        kind, phase, name, metaop, task, size_bytes, peer = subjects[number]
        about = kind, phase, metaop, task, name, stream, size_bytes, peer
        streams[stream - 1].append(_span((device, start_s, end_s, *about, 0.0, micro_batch)))
    return chain.from_iterable(streams)
