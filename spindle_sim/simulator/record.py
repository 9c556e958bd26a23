"""Writing down what happened: spans as they end, laid on streams when all is over."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter, itemgetter
from typing import NamedTuple

from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Note", "Record"]


class Note(NamedTuple):
    """A span of communication that has no stream yet."""

    device: int
    start_s: float
    end_s: float
    kind: Kind
    phase: Phase
    slice: str = ""
    metaop: str = ""
    task: str = ""
    size_bytes: float = 0.0
    peer: int | None = None
    micro_batch: int = 0


@dataclass(slots=True)
class Record:
    """What happened so far."""

    compute: list[Span] = field(default_factory=list)
    communication: list[Note] = field(default_factory=list)

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
        for device in item.devices:
            self.compute.append(
                Span(
                    device=device,
                    start_s=start_s,
                    end_s=end_s,
                    kind=Kind.COMPUTE,
                    phase=phase,
                    metaop=metaop.id,
                    task=metaop.task,
                    slice=item.id,
                    micro_batch=micro_batch,
                    wait_s=wait_s,
                )
            )

    def optimizer(self, device: int, start_s: float, end_s: float) -> None:
        """Note that a device stepped its optimizer."""
        self.compute.append(
            Span(device=device, start_s=start_s, end_s=end_s, kind=Kind.OPTIMIZER, phase=Phase.STEP)
        )

    def sync(self, devices: Iterable[int], start_s: float, end_s: float, size_bytes: float) -> None:
        """Note that devices synchronized vectors of `size_bytes`."""
        self.communication += [
            Note(device, start_s, end_s, Kind.SYNC, Phase.SYNC, size_bytes=size_bytes)
            for device in devices
        ]

    def spans(self) -> tuple[Span, ...]:
        """Give all spans by device, stream and start, none overlapping on a stream."""
        by_device: dict[int, list[Span]] = {}
        for span in self.compute:
            by_device.setdefault(span.device, []).append(span)
        notes: dict[int, list[Note]] = {}
        for note in self.communication:
            notes.setdefault(note.device, []).append(note)
        ordered: list[Span] = []
        for device in sorted(by_device.keys() | notes.keys()):
            ordered += sorted(by_device.get(device, ()), key=attrgetter("start_s", "end_s"))
            ordered += _laid(notes.get(device, []))
        return tuple(ordered)


def _laid(notes: list[Note]) -> list[Span]:
    """Lay the communication of one device on streams: each takes the lowest one that is free."""
    notes.sort(key=itemgetter(1, 2, 3, 5))  # start, end, kind, slice
    streams: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for note in notes:
        while busy and busy[0][0] <= note.start_s:
            heappush(free, heappop(busy)[1])
        if free:
            stream = heappop(free)
        else:
            streams.append([])
            stream = len(streams)
        heappush(busy, (note.end_s, stream))
        streams[stream - 1].append(_span(note, stream))
    return [span for spans in streams for span in spans]


def _span(note: Note, stream: int) -> Span:
    return Span(
        device=note.device,
        start_s=note.start_s,
        end_s=note.end_s,
        kind=note.kind,
        phase=note.phase,
        metaop=note.metaop,
        task=note.task,
        slice=note.slice,
        stream=stream,
        bytes=note.size_bytes,
        peer=note.peer,
        micro_batch=note.micro_batch,
    )
