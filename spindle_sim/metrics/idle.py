"""Why devices idle: every gap in a device's work is laid to what it waited for.

A gap ends when the next slice starts, or synchronization; what held that up last is the reason. The
gaps of all devices add up to the idle and the send/receive time of the summary.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from spindle_sim.metrics.breakdown import idle_gaps
from spindle_sim.metrics.bubbles import Bubble, Bubbles
from spindle_sim.metrics.syncs import Sync, Syncs
from spindle_sim.plan import ParameterGroup, Plan
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from spindle_sim.units import counted

__all__ = ["IdleKind", "IdleReason", "idle_reasons"]

_ROUNDING_S = 1e-9
_LISTED = 3


class IdleKind(StrEnum):
    """What a device waited for."""

    PRODUCER = "producer"  # another slice still computed this one's input
    FILL = "fill"  # of a pipeline: its first micro-batch hadn't come yet
    NEIGHBOUR = "neighbour"  # of a pipeline: the next or the last stage still had the micro-batch
    DRAIN = "drain"  # of a pipeline: no forward is left, the last micro-batches come back
    TRANSFER = "transfer"  # the input was on its way
    GROUP = "group"  # another device of the slice's group was busy
    IMBALANCE = "imbalance"  # devices that it synchronizes with still computed
    SYNC = "sync"  # they were done, but other groups' synchronization came first
    END = "end"  # no more work in the iteration
    UNUSED = "unused"  # no work at all
    OTHER = "other"  # nothing in the plan explains it


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReason:
    """One reason, summed over all devices and gaps.

    `metaop` and `task` are what was waited for, `waiting_metaop` what could not begin; empty where
    they don't apply. `share` is of the device-seconds of the iteration. `parameter_sets` and
    `group_devices` are of the parameter group that most of the synchronization waited for.
    """

    kind: IdleKind
    device_seconds: float
    share: float
    metaop: str = ""
    task: str = ""
    waiting_metaop: str = ""
    parameter_sets: tuple[str, ...] = ()
    group_devices: tuple[int, ...] = ()
    text: str


_BUBBLES = {
    IdleKind.FILL: "the pipeline of {} fills: stages wait for their first micro-batch (bubble)",
    IdleKind.NEIGHBOUR: "stages of {} wait for a micro-batch of a neighbouring stage (bubble)",
    IdleKind.DRAIN: "the pipeline of {} drains: stages have no forward left (bubble)",
}
_Operation = tuple[str, Phase, int]  # slice, forward or backward, micro-batch


@dataclass(frozen=True, slots=True)
class _Key:
    kind: IdleKind
    metaop: str = ""
    waiting: str = ""
    task: str = ""  # whose pipeline


@dataclass(frozen=True, slots=True)
class _Wait:
    """Seconds of a gap with their reason; `group` is whose synchronization was waited for."""

    key: _Key
    seconds: float
    group: ParameterGroup | None = None


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why one forward or backward didn't start earlier."""

    metaop: str
    group: str  # MetaOp that kept another device of the group busy until the start, or ""
    producer: str  # MetaOp of the last input, or ""
    given_by: str  # its slice
    produced_s: float


def idle_reasons(plan: Plan, timeline: Timeline, top: int = 5) -> tuple[IdleReason, ...]:
    """Give the `top` reasons by device-seconds, the longest first; ties by name."""
    by_device: dict[int, list[Span]] = {device: [] for device in range(timeline.num_devices)}
    for span in timeline.spans:
        by_device[span.device].append(_without_wait(span))
    causes = _causes(plan, by_device)
    syncs, bubbles = Syncs(plan, by_device), Bubbles.of(plan, by_device)
    iteration_s = timeline.iteration_s
    total: dict[_Key, float] = {}
    waited_s: dict[tuple[tuple[str, ...], tuple[int, ...]], float] = {}
    for spans in by_device.values():
        for wait in _explain(spans, iteration_s, causes, syncs, bubbles=bubbles):
            total[wait.key] = total.get(wait.key, 0.0) + wait.seconds
            if wait.group is not None:
                named = _named(wait.group)
                waited_s[named] = waited_s.get(named, 0.0) + wait.seconds
    most: tuple[tuple[str, ...], tuple[int, ...]] = (), ()
    if waited_s:
        most = min(waited_s, key=lambda named: (-waited_s[named], named))
    metaops = plan.metaop_by_id()
    whole_s = iteration_s * timeline.num_devices
    ranked = sorted(total.items(), key=lambda entry: (-entry[1], entry[0].kind, entry[0].metaop))
    return tuple(
        IdleReason(
            kind=key.kind,
            device_seconds=seconds,
            share=seconds / whole_s,
            metaop=key.metaop,
            task=metaops[key.metaop].task if key.metaop in metaops else key.task,
            waiting_metaop=key.waiting,
            parameter_sets=most[0] if key.kind is IdleKind.SYNC else (),
            group_devices=most[1] if key.kind is IdleKind.SYNC else (),
            text=_text(key, *most),
        )
        for key, seconds in ranked[:top]
    )


def _without_wait(span: Span) -> Span:
    """Give a span from when its peer was there: before that, the device idles."""
    return replace(span, start_s=span.start_s + span.wait_s, wait_s=0.0) if span.wait_s else span


def _explain(
    spans: list[Span],
    end_s: float,
    causes: dict[_Operation, _Cause],
    syncs: Syncs,
    *,
    bubbles: Bubbles,
) -> Iterable[_Wait]:
    """Give the reasons of one device's gaps with their seconds."""
    working = sorted(
        (span for span in spans if span.kind in (Kind.COMPUTE, Kind.OPTIMIZER, Kind.SYNC)),
        key=lambda span: span.start_s,
    )
    starts = [span.start_s for span in working]
    for begin, end in idle_gaps(working, end_s):
        index = bisect_left(starts, end)
        if not working:
            yield _Wait(_Key(IdleKind.UNUSED), end - begin)
            continue
        if index < len(working) and working[index].kind is Kind.COMPUTE:
            span = working[index]
            cause = causes[_operation(span)]
            bubble = bubbles.before(span, cause.given_by)
            for key, seconds in _split(begin, end, cause):
                inside = key.kind is IdleKind.PRODUCER and bubble
                yield _Wait(_bubble(*inside) if inside else key, seconds)
            continue
        draining = bubbles.after(working[0].device, begin)
        if draining is not None:
            drained_s = min(draining[0], end)
            yield _Wait(_bubble(Bubble.DRAIN, draining[1]), drained_s - begin)
            begin = drained_s
        if begin >= end:
            continue
        if index == len(working):
            yield _Wait(_Key(IdleKind.END), end - begin)
        elif working[index].kind is Kind.SYNC:
            yield from _until(syncs.of(working[index]), begin, end, syncs)
        else:
            yield _Wait(_Key(IdleKind.OTHER, waiting="the optimizer"), end - begin)


def _bubble(kind: Bubble, task: str) -> _Key:
    return _Key(IdleKind(kind.value), task=task)


def _until(sync: Sync, begin: float, end: float, syncs: Syncs) -> Iterable[_Wait]:
    """Lay a gap before a synchronization to the computing of its devices, then to others' turns."""
    ready_s = min(max(syncs.ready_s(sync), begin), end)
    if ready_s > begin:
        yield _Wait(_Key(IdleKind.IMBALANCE), ready_s - begin)
    rest_s = end - ready_s
    for before, seconds in syncs.blockers(sync, ready_s):
        yield _Wait(_Key(IdleKind.SYNC), seconds, before.group)
        rest_s -= seconds
    if rest_s > 0.0:
        yield _Wait(_Key(IdleKind.SYNC), rest_s)


def _named(group: ParameterGroup) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(dict.fromkeys(part.parameter_set for part in group.parameter_sets)), group.devices


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


def _causes(plan: Plan, by_device: dict[int, list[Span]]) -> dict[_Operation, _Cause]:
    """Give the cause of the start of every forward and backward in the timeline."""
    first: dict[_Operation, Span] = {}
    ends: dict[_Operation, float] = {}
    before: dict[_Operation, Span] = {}  # the last span to end on a device of the group
    for spans in by_device.values():
        previous: Span | None = None
        for span in sorted(spans, key=lambda span: span.start_s):
            if span.kind is not Kind.COMPUTE:
                continue
            key = _operation(span)
            first.setdefault(key, span)
            ends[key] = max(ends.get(key, 0.0), span.end_s)
            if previous and (key not in before or previous.end_s > before[key].end_s):
                before[key] = previous
            previous = span
    inputs = _inputs(plan)
    metaop_of = {item.id: item.metaop for item in plan.slices}
    causes: dict[_Operation, _Cause] = {}
    for key, span in first.items():
        last = before.get(key)
        held_up = last is not None and last.end_s >= span.start_s - _ROUNDING_S
        given = [(name, *key[1:]) for name in inputs.get(key[:2], ())]
        produced_s, producer = max(
            ((ends[source], source[0]) for source in given if source in ends), default=(0.0, "")
        )
        causes[key] = _Cause(
            metaop=span.metaop,
            group=last.metaop if held_up and last else "",
            producer=metaop_of.get(producer, ""),
            given_by=producer,
            produced_s=produced_s,
        )
    return causes


def _operation(span: Span) -> _Operation:
    return span.slice, span.phase, span.micro_batch


def _inputs(plan: Plan) -> dict[tuple[str, Phase], list[str]]:
    """Give the slices that each forward and backward receives from."""
    inputs: dict[tuple[str, Phase], list[str]] = {}
    for flow in plan.flows:
        inputs.setdefault((flow.target_slice, Phase.FORWARD), []).append(flow.source_slice)
        if flow.gradient:
            inputs.setdefault((flow.source_slice, Phase.BACKWARD), []).append(flow.target_slice)
    return inputs


def _text(key: _Key, parameter_sets: Sequence[str], devices: Sequence[int]) -> str:
    match key.kind:
        case IdleKind.PRODUCER:
            return f"{key.waiting} waits until {key.metaop} is computed"
        case IdleKind.FILL | IdleKind.NEIGHBOUR | IdleKind.DRAIN:
            return _BUBBLES[key.kind].format(key.task)
        case IdleKind.TRANSFER:
            return f"{key.waiting} waits for the transfer from {key.metaop}"
        case IdleKind.GROUP:
            return f"{key.waiting} waits for devices of its group busy with {key.metaop}"
        case IdleKind.IMBALANCE:
            return (
                "no more work until synchronization: devices of the same parameter group compute"
                " longer (imbalance)"
            )
        case IdleKind.SYNC:
            named = f", most for {_listed(parameter_sets)} on {_ranges(devices)}" if devices else ""
            return (
                f"synchronization waits its turn: that of other parameter groups goes first{named}"
            )
        case IdleKind.END:
            return "no more work in the iteration: other devices synchronize or step longer"
        case IdleKind.UNUSED:
            return "devices that the plan gives no work"
        case IdleKind.OTHER:
            return f"{key.waiting} starts late for no reason in the plan (overhead)"


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join([*names[:_LISTED], *more])


def _ranges(devices: Sequence[int]) -> str:
    """Give "16 devices (0-7, 16-23)"."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{counted(len(devices), 'device')} ({_listed(shown)})"
