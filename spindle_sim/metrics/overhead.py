"""What a backend itself takes of an iteration that it ran: all but the spans of its timeline."""

from dataclasses import dataclass

from spindle_sim.timeline import Span, Timeline

__all__ = ["EngineTime", "engine_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """Seconds of each device that went neither into computing nor messages, nor waiting for them.

    They are those between its first span and its last. What comes before is its start, what comes
    after is waiting for others.
    """

    device_s: tuple[float, ...]
    iteration_s: float

    @property
    def share(self) -> float:
        """The mean over devices, of the iteration."""
        if not self.device_s or not self.iteration_s:
            return 0.0
        return sum(self.device_s) / len(self.device_s) / self.iteration_s


def engine_time(timeline: Timeline) -> EngineTime:
    """Give the engine's own time of a timeline that a backend has measured.

    In a simulated one this is time in which a device waits, since nothing else is left out of it.
    """
    spans: dict[int, list[Span]] = {device: [] for device in range(timeline.num_devices)}
    for span in timeline.spans:
        spans[span.device].append(span)
    return EngineTime(
        device_s=tuple(_between(own) for own in spans.values()), iteration_s=timeline.iteration_s
    )


def _between(spans: list[Span]) -> float:
    """Give the time in which none of the spans runs, from the first to the last."""
    total_s, end_s = 0.0, None
    for span in sorted(spans, key=lambda span: span.start_s):
        if end_s is not None and span.start_s > end_s:
            total_s += span.start_s - end_s
        end_s = span.end_s if end_s is None else max(end_s, span.end_s)
    return total_s
