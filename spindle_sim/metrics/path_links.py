"""What leads from one step of a critical path to the next, and spans by device to find it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from spindle_sim.plan import Plan
from spindle_sim.timeline import Phase, Span

__all__ = ["ROUNDING_S", "Cause", "Operation", "Track", "Why", "inputs_of", "operation_of"]

Operation = tuple[str, Phase, int]  # slice, forward or backward, micro-batch

ROUNDING_S = 1e-9  # clocks of devices, and sums of the simulator, agree to this


class Why(StrEnum):
    """Why a step of the path begins when it does; the last three are of gaps."""

    START = "start"  # it waits for nothing: the first of its device
    ORDER = "order"  # its devices were busy until then, in the order that the plan states
    INPUT = "input"  # what it takes was computed, or had arrived
    GRADIENTS = "gradients"  # the gradients that it synchronizes were complete
    LAST_RANK = "last_rank"  # another device of its collective came last
    TURN = "turn"  # the synchronization before it had ended
    STEP = "step"  # gradients were synchronized, or of a gathering: parameters were stepped
    LATE = "late"  # the device began later than the first one
    ENGINE = "engine"  # between spans of one device: the engine's own time
    UNEXPLAINED = "unexplained"  # nothing that it waits for ended then


class Cause(NamedTuple):
    """A span that another waited for, until `until_s`: its end, or an instant within it."""

    span: Span
    until_s: float
    why: Why


class Track:
    """Spans of one device of which none overlaps another, or any spans: found by time."""

    __slots__ = ("_by_end", "_by_start", "_ends", "_starts")

    def __init__(self, spans: Iterable[Span]) -> None:
        """Sort them both ways."""
        self._by_start = sorted(spans, key=attrgetter("start_s", "end_s"))
        self._by_end = sorted(self._by_start, key=attrgetter("end_s", "start_s"))
        self._starts = [span.start_s for span in self._by_start]
        self._ends = [span.end_s for span in self._by_end]

    def ended(self, time_s: float, but: Span | None = None) -> Span | None:
        """Give the last span to end by a time, other than `but`."""
        index = bisect_right(self._ends, time_s + ROUNDING_S) - 1
        while index >= 0 and (self._by_end[index] is but):
            index -= 1
        return self._by_end[index] if index >= 0 else None

    def ended_by(self, time_s: float) -> Iterable[Span]:
        """Give all spans that end at the same time, the last by a time."""
        index = bisect_right(self._ends, time_s + ROUNDING_S) - 1
        if index >= 0:
            yield from self._by_end[bisect_left(self._ends, self._ends[index]) : index + 1]

    def before(self, span: Span) -> Span | None:
        """Give the span before one, where none overlaps."""
        index = bisect_left(self._starts, span.start_s) - 1
        return self._by_start[index] if index >= 0 else None

    def covering(self, time_s: float) -> Span | None:
        """Give the span that goes on at a time, where none overlaps."""
        index = bisect_left(self._starts, time_s - ROUNDING_S) - 1
        if index < 0 or self._by_start[index].end_s <= time_s + ROUNDING_S:
            return None
        return self._by_start[index]

    def began(self, time_s: float) -> Iterable[Span]:
        """Give the spans that begin at a time."""
        index = bisect_left(self._starts, time_s - ROUNDING_S)
        while index < len(self._starts) and self._starts[index] <= time_s + ROUNDING_S:
            yield self._by_start[index]
            index += 1


def operation_of(span: Span) -> Operation:
    """Give what a span computes, or moves the input of."""
    return span.slice, span.phase, span.micro_batch


def inputs_of(plan: Plan) -> dict[tuple[str, Phase], tuple[str, ...]]:
    """Give the slices that each forward and backward takes something from."""
    inputs: dict[tuple[str, Phase], tuple[str, ...]] = {}

    def add(target: str, phase: Phase, source: str) -> None:
        inputs[target, phase] = (*inputs.get((target, phase), ()), source)

    for flow in plan.flows:
        add(flow.target_slice, Phase.FORWARD, flow.source_slice)
        if flow.gradient:
            add(flow.source_slice, Phase.BACKWARD, flow.target_slice)
    return inputs
