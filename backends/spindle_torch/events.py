"""What one rank notes while it runs, and how the notes of all ranks become a timeline.

Spans are what the rank itself spent its time on: a receive is the time for which it waited for
messages, 0 where they came while it computed. Of it, `wait_s` is until the last sender had posted
its side: the rest is transfer. Likewise a synchronization waits until its last rank has come, and
one that runs beside the backward until the last has launched it. Of computing it is the time for
which gradients or parameters were waited for meanwhile (ZeRO-2 and -3).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spindle_sim.plan import Plan
from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = ["Event", "Origin", "to_timeline"]

_Meeting = tuple[int, int]  # a group and how often it met before
_COMMUNICATION = {Kind.SEND, Kind.RECEIVE, Kind.COPY, Kind.SYNC}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is awaited: the messages that a rank sends with the output of an operation."""

    slice: str
    backward: bool
    rank: int
    micro_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that a rank did; `awaits` of a receive, `group` of a synchronization.

    With `launches` it only began the synchronization, and waited for nobody.
    """

    kind: Kind
    phase: Phase
    start_s: float
    end_s: float
    slice: str = ""
    size_bytes: float = 0.0
    awaits: tuple[Origin, ...] = ()
    peers: tuple[int, ...] = ()
    group: int = -1
    launches: bool = False
    micro_batch: int = 0


def to_timeline(
    plan: Plan, backend: str, events: Sequence[Sequence[Event]], starts_s: Sequence[float]
) -> Timeline:
    """Give the timeline of one iteration from the events of each rank, on one clock.

    It begins when the first rank does.
    """
    begin_s = min(starts_s)
    posted = {
        Origin(
            slice=event.slice,
            backward=event.phase is Phase.BACKWARD,
            rank=rank,
            micro_batch=event.micro_batch,
        ): event.start_s
        for rank, own in enumerate(events)
        for event in own
        if event.kind is Kind.SEND
    }
    turns = [_turns(own) for own in events]
    last = _last_come_s(events, turns)
    metaops = plan.metaop_by_id()
    owners = {item.id: (item.metaop, metaops[item.metaop].task) for item in plan.slices}
    owners[""] = "", ""
    spans = [
        _span(
            rank, event, owners[event.slice], max(_ready_s(event, posted, last, turn), at), begin_s
        )
        for rank, own in enumerate(events)
        for event, turn, at in zip(own, turns[rank], _computing_s(own), strict=True)
    ]
    spans.sort(key=lambda span: (span.device, span.start_s, span.end_s))
    return Timeline(backend=backend, num_devices=plan.cluster.num_devices, spans=tuple(spans))


def _turns(events: Sequence[Event]) -> list[_Meeting]:
    """Give which meeting each event belongs to: a group may synchronize several times."""
    met: Counter[tuple[int, bool]] = Counter()
    found: list[_Meeting] = []
    for event in events:
        key = event.group, event.launches
        found.append((event.group, met[key]))
        met[key] += event.kind is Kind.SYNC
    return found


def _last_come_s(
    events: Sequence[Sequence[Event]], turns: Sequence[Sequence[_Meeting]]
) -> dict[_Meeting, float]:
    """Give when the last rank came to each synchronization, or launched it."""
    launched = {event.group for own in events for event in own if event.launches}
    last: dict[_Meeting, float] = {}
    for own, meetings in zip(events, turns, strict=True):
        for event, meeting in zip(own, meetings, strict=True):
            if event.kind is Kind.SYNC and event.launches == (event.group in launched):
                last[meeting] = max(last.get(meeting, event.start_s), event.start_s)
    return last


def _ready_s(
    event: Event,
    posted: Mapping[Origin, float],
    last: Mapping[_Meeting, float],
    meeting: _Meeting,
) -> float:
    """Give when the last of the others was there."""
    if event.launches:
        return event.start_s
    if event.kind is Kind.SYNC:
        return last[meeting]
    return max((posted[origin] for origin in event.awaits), default=event.start_s)


def _computing_s(events: Sequence[Event]) -> Iterator[float]:
    """Give when each event would have begun, had it waited at its begin for what it waited within.

    Waits are noted before the computing that they are within.
    """
    waits: list[Event] = []
    for event in events:
        waited_s = 0.0
        if event.kind is Kind.SYNC and not event.launches:
            waits.append(event)
        if event.kind is Kind.COMPUTE:
            within = (wait for wait in waits if wait.start_s >= event.start_s)
            waited_s = sum(wait.end_s - wait.start_s for wait in within)
            waits = []
        yield event.start_s + waited_s


def _span(rank: int, event: Event, owner: tuple[str, str], ready_s: float, begin_s: float) -> Span:
    metaop, task = owner
    return Span(
        device=rank,
        start_s=event.start_s - begin_s,
        end_s=event.end_s - begin_s,
        kind=event.kind,
        phase=event.phase,
        metaop=metaop,
        task=task,
        slice=event.slice,
        stream=1 if event.kind in _COMMUNICATION else 0,
        bytes=event.size_bytes,
        micro_batch=event.micro_batch,
        peer=event.peers[0] if len(event.peers) == 1 else None,
        wait_s=min(max(ready_s - event.start_s, 0.0), event.end_s - event.start_s),
    )
