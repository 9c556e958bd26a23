"""Where the time of one device goes: each instant counts once, for the most useful thing done."""

from collections.abc import Iterable
from dataclasses import dataclass

from spindle_sim.timeline import Kind, Span

__all__ = ["Breakdown", "break_down", "idle_gaps"]

_CLASSES = {  # the lower counts where several happen at once
    Kind.COMPUTE: 0,
    Kind.OPTIMIZER: 1,
    Kind.SYNC: 2,
    Kind.SEND: 3,
    Kind.RECEIVE: 3,
    Kind.COPY: 3,
}
_NUM_CLASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one device; what is missing to the iteration's duration is idle.

    `sync_s` and `send_recv_s` are exposed: nothing before them in this list happened meanwhile.
    """

    forward_backward_s: float
    optimizer_s: float
    sync_s: float
    send_recv_s: float

    @property
    def busy_s(self) -> float:
        """Their sum."""
        return self.forward_backward_s + self.optimizer_s + self.sync_s + self.send_recv_s


def break_down(spans: Iterable[Span]) -> Breakdown:
    """Give the seconds of one device's spans by class."""
    totals = [0.0] * _NUM_CLASSES
    for start_s, end_s, best in _stretches(spans):
        totals[best] += end_s - start_s
    compute, optimizer, sync, send_recv = totals
    return Breakdown(
        forward_backward_s=compute, optimizer_s=optimizer, sync_s=sync, send_recv_s=send_recv
    )


def idle_gaps(spans: Iterable[Span], end_s: float) -> list[tuple[float, float]]:
    """Give the gaps until `end_s` in which a device neither computes nor synchronizes.

    Transfers in flight don't fill a gap: the device waits.
    """
    working = (span for span in spans if _CLASSES[span.kind] < _CLASSES[Kind.SEND])
    gaps: list[tuple[float, float]] = []
    last_s = 0.0
    for start, end, _ in _stretches(working):
        if start > last_s:
            gaps.append((last_s, start))
        last_s = end
    if end_s > last_s:
        gaps.append((last_s, end_s))
    return gaps


def _stretches(spans: Iterable[Span]) -> Iterable[tuple[float, float, int]]:
    """Give (start, end, lowest class) of each stretch in which something happens, in order.

    A span begins once its peer is there: waiting for it is idling.
    """
    edges: list[tuple[float, int, int]] = []
    for span in spans:
        begin_s = span.start_s + span.wait_s
        if span.end_s > begin_s:
            edges.append((begin_s, _CLASSES[span.kind], 1))
            edges.append((span.end_s, _CLASSES[span.kind], -1))
    edges.sort()
    active = [0] * _NUM_CLASSES
    last_s = 0.0
    for time_s, kind, step in edges:
        if time_s > last_s:
            best = next((index for index, count in enumerate(active) if count), None)
            if best is not None:
                yield last_s, time_s, best
            last_s = time_s
        active[kind] += step
