"""Why devices idle: every gap in a device's work is laid to what it waited for.

A gap ends when the next slice starts, or synchronization; what held that up last is the reason. The
gaps of all devices add up to the idle and the send/receive time of the summary.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from spindle_sim.metrics.breakdown import idle_gaps
from spindle_sim.plan import Plan
from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = ["IdleKind", "IdleReason", "idle_reasons"]

_ROUNDING_S = 1e-9


class IdleKind(StrEnum):
    """What a device waited for."""

    PRODUCER = "producer"  # another slice still computed this one's input
    TRANSFER = "transfer"  # the input was on its way
    GROUP = "group"  # another device of the slice's group was busy
    SYNC = "sync"  # no more work until synchronization
    END = "end"  # no more work in the iteration
    UNUSED = "unused"  # no work at all
    OTHER = "other"  # nothing in the plan explains it


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReason:
    """One reason, summed over all devices and gaps.

    `metaop` and `task` are what was waited for, `waiting_metaop` what could not begin; empty where
    they don't apply. `share` is of the device-seconds of the iteration.
    """

    kind: IdleKind
    device_seconds: float
    share: float
    metaop: str = ""
    task: str = ""
    waiting_metaop: str = ""
    text: str


@dataclass(frozen=True, slots=True)
class _Key:
    kind: IdleKind
    metaop: str = ""
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why one forward or backward didn't start earlier."""

    metaop: str
    group: str  # MetaOp that kept another device of the group busy until the start, or ""
    producer: str  # MetaOp of the last input, or ""
    produced_s: float


def idle_reasons(plan: Plan, timeline: Timeline, top: int = 5) -> tuple[IdleReason, ...]:
    """Give the `top` reasons by device-seconds, the longest first; ties by name."""
    by_device: dict[int, list[Span]] = {device: [] for device in range(timeline.num_devices)}
    for span in timeline.spans:
        by_device[span.device].append(span)
    causes = _causes(plan, by_device)
    iteration_s = timeline.iteration_s
    total: dict[_Key, float] = {}
    for spans in by_device.values():
        for key, seconds in _explain(spans, iteration_s, causes):
            total[key] = total.get(key, 0.0) + seconds
    metaops = plan.metaop_by_id()
    whole_s = iteration_s * timeline.num_devices
    ranked = sorted(total.items(), key=lambda entry: (-entry[1], entry[0].kind, entry[0].metaop))
    return tuple(
        IdleReason(
            kind=key.kind,
            device_seconds=seconds,
            share=seconds / whole_s,
            metaop=key.metaop,
            task=metaops[key.metaop].task if key.metaop in metaops else "",
            waiting_metaop=key.waiting,
            text=_text(key),
        )
        for key, seconds in ranked[:top]
    )


def _explain(
    spans: list[Span], end_s: float, causes: dict[tuple[str, Phase], _Cause]
) -> Iterable[tuple[_Key, float]]:
    """Give the reasons of one device's gaps with their seconds."""
    working = sorted(
        (span for span in spans if span.kind in (Kind.COMPUTE, Kind.OPTIMIZER, Kind.SYNC)),
        key=lambda span: span.start_s,
    )
    starts = [span.start_s for span in working]
    for begin, end in idle_gaps(working, end_s):
        index = bisect_left(starts, end)
        if not working:
            yield _Key(IdleKind.UNUSED), end - begin
        elif index == len(working):
            yield _Key(IdleKind.END), end - begin
        elif working[index].kind is not Kind.COMPUTE:
            yield _Key(IdleKind.SYNC), end - begin
        else:
            yield from _split(begin, end, causes[working[index].slice, working[index].phase])


def _split(begin: float, end: float, cause: _Cause) -> Iterable[tuple[_Key, float]]:
    """Lay one gap to the group, or to the input: first its computing, then its way."""
    if cause.group:
        yield _Key(IdleKind.GROUP, cause.group, cause.metaop), end - begin
        return
    if not cause.producer:
        yield _Key(IdleKind.OTHER, waiting=cause.metaop), end - begin
        return
    ready_s = min(max(cause.produced_s, begin), end)
    if ready_s > begin:
        yield _Key(IdleKind.PRODUCER, cause.producer, cause.metaop), ready_s - begin
    if ready_s < end:
        yield _Key(IdleKind.TRANSFER, cause.producer, cause.metaop), end - ready_s


def _causes(plan: Plan, by_device: dict[int, list[Span]]) -> dict[tuple[str, Phase], _Cause]:
    """Give the cause of the start of every forward and backward in the timeline."""
    first: dict[tuple[str, Phase], Span] = {}
    ends: dict[tuple[str, Phase], float] = {}
    before: dict[tuple[str, Phase], Span] = {}  # the last span to end on a device of the group
    for spans in by_device.values():
        previous: Span | None = None
        for span in sorted(spans, key=lambda span: span.start_s):
            if span.kind is not Kind.COMPUTE:
                continue
            key = span.slice, span.phase
            first.setdefault(key, span)
            ends[key] = max(ends.get(key, 0.0), span.end_s)
            if previous and (key not in before or previous.end_s > before[key].end_s):
                before[key] = previous
            previous = span
    inputs = _inputs(plan)
    metaop_of = {item.id: item.metaop for item in plan.slices}
    causes: dict[tuple[str, Phase], _Cause] = {}
    for key, span in first.items():
        last = before.get(key)
        held_up = last is not None and last.end_s >= span.start_s - _ROUNDING_S
        produced_s, producer = max(
            ((ends[name, key[1]], name) for name in inputs.get(key, ()) if (name, key[1]) in ends),
            default=(0.0, ""),
        )
        causes[key] = _Cause(
            metaop=span.metaop,
            group=last.metaop if held_up and last else "",
            producer=metaop_of.get(producer, ""),
            produced_s=produced_s,
        )
    return causes


def _inputs(plan: Plan) -> dict[tuple[str, Phase], list[str]]:
    """Give the slices that each forward and backward receives from."""
    inputs: dict[tuple[str, Phase], list[str]] = {}
    for flow in plan.flows:
        inputs.setdefault((flow.target_slice, Phase.FORWARD), []).append(flow.source_slice)
        if flow.gradient:
            inputs.setdefault((flow.source_slice, Phase.BACKWARD), []).append(flow.target_slice)
    return inputs


def _text(key: _Key) -> str:
    match key.kind:
        case IdleKind.PRODUCER:
            return f"{key.waiting} waits until {key.metaop} is computed"
        case IdleKind.TRANSFER:
            return f"{key.waiting} waits for the transfer from {key.metaop}"
        case IdleKind.GROUP:
            return f"{key.waiting} waits for devices of its group busy with {key.metaop}"
        case IdleKind.SYNC:
            return "no more work until synchronization: other devices finish later (imbalance)"
        case IdleKind.END:
            return "no more work in the iteration: other devices synchronize or step longer"
        case IdleKind.UNUSED:
            return "devices that the plan gives no work"
        case IdleKind.OTHER:
            return f"{key.waiting} starts late for no reason in the plan (overhead)"
