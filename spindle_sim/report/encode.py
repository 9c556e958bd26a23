"""A timeline's spans as gzipped typed arrays: 50,000 spans are a quarter of a megabyte of text.

Columns, little-endian, all spans of device 0 by start, then of device 1, ...: start in ticks since
the span before on that device (u32), duration in ticks (u32), slice (u32), bytes (f32), peer (i32),
category (u16), kind (u8), phase (u8). A tick is a power of ten nanoseconds, so that integers hold
any iteration exactly enough.
"""

import base64
import gzip
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = ["NO_SLICE", "EncodedSpans", "encode_spans"]

NO_SLICE = 2**32 - 1
_MAX_TICKS = 2**32 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSpans:
    """The spans of one timeline: `counts` of each device, `data` in base64."""

    tick_s: float
    counts: tuple[int, ...]
    data: str


def encode_spans(timeline: Timeline, tasks: dict[str, int], slices: dict[str, int]) -> EncodedSpans:
    """Give the spans; `tasks` and `slices` number the names.

    The category of a span is its task's number where it computes for a known one, else the number
    of tasks plus that of its kind.
    """
    tick_s = 1e-9
    while timeline.iteration_s / tick_s > _MAX_TICKS:
        tick_s *= 10.0
    spans = sorted(timeline.spans, key=lambda span: (span.device, span.start_s, span.stream))
    counts = np.bincount([span.device for span in spans], minlength=timeline.num_devices)
    starts = np.array([round(span.start_s / tick_s) for span in spans], dtype=np.int64)
    ends = np.array([round(span.end_s / tick_s) for span in spans], dtype=np.int64)
    first = np.zeros(len(spans), dtype=bool)
    first[np.concatenate([[0], np.cumsum(counts)])[:-1][counts > 0]] = True
    steps = np.where(first, starts, np.diff(starts, prepend=0))
    kinds, phases = list(Kind), list(Phase)
    columns: tuple[NDArray[np.generic], ...] = (
        steps.astype("<u4"),
        (ends - starts).astype("<u4"),
        np.array([slices.get(span.slice, NO_SLICE) for span in spans], dtype="<u4"),
        np.array([span.bytes for span in spans], dtype="<f4"),
        np.array([-1 if span.peer is None else span.peer for span in spans], dtype="<i4"),
        np.array([_category(span, tasks) for span in spans], dtype="<u2"),
        np.array([kinds.index(span.kind) for span in spans], dtype="u1"),
        np.array([phases.index(span.phase) for span in spans], dtype="u1"),
    )
    raw = b"".join(column.tobytes() for column in columns)
    return EncodedSpans(
        tick_s=tick_s,
        counts=tuple(int(count) for count in counts),
        data=base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii"),
    )


def _category(span: Span, tasks: dict[str, int]) -> int:
    if span.kind is Kind.COMPUTE and span.task in tasks:
        return tasks[span.task]
    return len(tasks) + list(Kind).index(span.kind)
