"""A timeline as a Chrome trace, which the Perfetto UI opens: a process a device, a track a stream.

Perfetto drops events that overlap on a track, so what would overlap goes to a further track.
"""

import gzip
import json
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path

from spindle_sim.plan import Plan, Slice
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.timeline import Kind, Span, Timeline

__all__ = ["trace_events", "write_trace"]

_NS_PER_S = 1e9
_NS_PER_US = 1000
_STREAM_TRACKS = 1000  # tracks of one stream, far more than ever overlap
Event = dict[str, object]


def write_trace(path: Path | str, plan: Plan, timeline: Timeline) -> None:
    """Write the trace of one iteration; gzipped where `path` ends in .gz.

    Raises:
        UsageError: the path can't be written.
    """
    head = json.dumps(
        {
            "strategy": plan.strategy,
            "workload": plan.workload.name,
            "cluster": plan.cluster.name,
            "backend": timeline.backend,
            "times": plan.profile,
            "tool": plan.tool,
        }
    )
    events = ",\n".join(json.dumps(event) for event in trace_events(plan, timeline))
    text = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{events}\n]}}\n'
    content = text.encode()
    if str(path).endswith(".gz"):
        content = gzip.compress(content, 6, mtime=0)  # no clock: same inputs, same bytes
    write_atomically(path, content)


def trace_events(plan: Plan, timeline: Timeline) -> Iterator[Event]:
    """Give the events: names of processes and tracks, complete events, memory counters.

    Times are whole nanoseconds, in microseconds as the format wants them.
    """
    spans: dict[int, list[Span]] = {device: [] for device in range(timeline.num_devices)}
    for span in timeline.spans:
        spans.setdefault(span.device, []).append(span)
    slices = plan.slice_by_id()
    cut = frozenset(item.round for item in plan.rounds if item.micro_batches > 1)
    for device, own in spans.items():
        name = f"GPU {device} (node {plan.cluster.node_of(device)})"
        yield _metadata("process_name", device, 0, name=name)
        yield _metadata("process_sort_index", device, 0, sort_index=device)
        tracks = list(_tracks(own))
        for track, label in sorted({(track, label) for track, label, _ in tracks}):
            yield _metadata("thread_name", device, track, name=label)
            yield _metadata("thread_sort_index", device, track, sort_index=track)
        for track, _, span in tracks:
            yield _complete(span, track, slices, cut)
    for sample in timeline.memory:
        yield {
            "ph": "C",
            "name": "memory",
            "pid": sample.device,
            "tid": 0,
            "ts": _nanoseconds(sample.time_s) / _NS_PER_US,
            "args": {"bytes": sample.bytes},
        }


def _tracks(spans: list[Span]) -> Iterator[tuple[int, str, Span]]:
    """Give (track, its label, span): the lowest track of the span's stream that is free."""
    ordered = sorted(
        spans, key=lambda s: (s.stream, _nanoseconds(s.start_s), _nanoseconds(s.end_s), s.slice)
    )
    busy: dict[int, list[tuple[int, int]]] = {}  # stream -> (end, track) of its tracks
    free: dict[int, list[int]] = {}
    opened: dict[int, int] = {}
    for span in ordered:
        stream, start = span.stream, _nanoseconds(span.start_s)
        running, idle = busy.setdefault(stream, []), free.setdefault(stream, [])
        while running and running[0][0] <= start:
            heappush(idle, heappop(running)[1])
        if idle:
            number = heappop(idle)
        else:
            number = opened.get(stream, 0)
            opened[stream] = number + 1
        heappush(running, (_nanoseconds(span.end_s), number))
        label = "compute" if stream == 0 else f"communication {stream}"
        yield stream * _STREAM_TRACKS + number, f"{label}.{number}" if number else label, span


def _complete(span: Span, track: int, slices: dict[str, Slice], cut: frozenset[int]) -> Event:
    """Give the event of a span; rounds in `cut` have several micro-batches."""
    start, end = _nanoseconds(span.start_s), _nanoseconds(span.end_s)
    arguments: dict[str, object] = {"kind": span.kind, "phase": span.phase}
    for name in ("task", "metaop", "slice"):
        if getattr(span, name):
            arguments[name] = getattr(span, name)
    item = slices.get(span.slice)
    if item is not None:
        arguments |= {"round": item.round, "stage": item.stage}
        last = item.first_op + item.num_ops - 1
        several = item.num_ops > 1
        arguments["operators"] = f"{item.first_op} to {last}" if several else f"{last}"
        if item.round in cut:
            arguments["micro_batch"] = span.micro_batch
    if span.kind not in (Kind.COMPUTE, Kind.OPTIMIZER):
        arguments["bytes"] = span.bytes
        if span.peer is not None:
            arguments["peer"] = span.peer
        if span.wait_s:
            arguments["wait_us"] = _nanoseconds(span.wait_s) / _NS_PER_US
    return {
        "ph": "X",
        "name": _name(span),
        "cat": f"{span.kind},{span.phase}",
        "pid": span.device,
        "tid": track,
        "ts": start / _NS_PER_US,
        "dur": (end - start) / _NS_PER_US,
        "args": arguments,
    }


def _name(span: Span) -> str:
    if span.kind is Kind.COMPUTE:
        return f"{span.metaop} {span.phase}"
    if span.kind in (Kind.SYNC, Kind.OPTIMIZER):
        return str(span.kind)
    return f"{span.kind} {span.metaop}".rstrip()


def _metadata(kind: str, device: int, track: int, **arguments: object) -> Event:
    return {"ph": "M", "name": kind, "pid": device, "tid": track, "args": arguments}


def _nanoseconds(time_s: float) -> int:
    return round(time_s * _NS_PER_S)
