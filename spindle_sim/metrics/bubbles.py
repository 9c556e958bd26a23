"""The bubbles of pipelines: where a rank has nothing to do while the round of its pipeline runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from spindle_sim.plan import Order, Plan
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Bubble", "Bubbles"]


class Bubble(StrEnum):
    """When in its round a rank waits."""

    FILL = "fill"  # until the first micro-batch comes to it
    NEIGHBOUR = "neighbour"  # for a micro-batch of the stage before it, or behind it
    DRAIN = "drain"  # after its last forward, until the last micro-batch is back at the first stage


@dataclass(slots=True)
class _Part:
    """What one device computes in a round."""

    first_s: float
    last_forward_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubbles:
    """Tells bubbles from other waits; knows only rounds that run one forward, one backward."""

    tasks: dict[int, str] = field(default_factory=dict)  # by round
    _rounds: dict[str, int] = field(default_factory=dict)  # by slice
    _parts: dict[tuple[int, int], _Part] = field(default_factory=dict)  # by device and round
    _ends_s: dict[int, float] = field(default_factory=dict)  # by round

    @staticmethod
    def of(plan: Plan, by_device: Mapping[int, Sequence[Span]]) -> "Bubbles":
        """Give the bubbles of a timeline."""
        pipelined = {r.round for r in plan.rounds if r.order is Order.ONE_FORWARD_ONE_BACKWARD}
        metaops = plan.metaop_by_id()
        found = Bubbles()
        for item in plan.slices:
            if item.round in pipelined:
                found._rounds[item.id] = item.round
                found.tasks.setdefault(item.round, metaops[item.metaop].task)
        for spans in by_device.values():
            for span in spans:
                if span.kind is Kind.COMPUTE and span.slice in found._rounds:
                    found._add(span)
        return found

    def before(self, span: Span, producer: str) -> tuple[Bubble, str] | None:
        """Give the bubble, and whose, in which a span waits for a slice; None if in none."""
        number = self._rounds.get(span.slice)
        if number is None or self._rounds.get(producer) != number:
            return None
        part = self._parts[span.device, number]
        kind = Bubble.NEIGHBOUR
        if span.start_s <= part.first_s:
            kind = Bubble.FILL
        elif span.phase is Phase.BACKWARD and span.start_s >= part.last_forward_s:
            kind = Bubble.DRAIN
        return kind, self.tasks[number]

    def after(self, device: int, begin_s: float) -> tuple[float, str] | None:
        """Give until when, and whose, a pipeline still drains that a device has left; or None."""
        left = [
            number
            for (one, number), part in self._parts.items()
            if one == device and part.last_s <= begin_s < self._ends_s[number]
        ]
        if not left:
            return None
        number = max(left, key=self._ends_s.__getitem__)
        return self._ends_s[number], self.tasks[number]

    def _add(self, span: Span) -> None:
        number = self._rounds[span.slice]
        part = self._parts.setdefault(
            (span.device, number), _Part(span.start_s, span.start_s, span.end_s)
        )
        part.first_s = min(part.first_s, span.start_s)
        part.last_s = max(part.last_s, span.end_s)
        if span.phase is Phase.FORWARD:
            part.last_forward_s = max(part.last_forward_s, span.end_s)
        self._ends_s[number] = max(self._ends_s.get(number, 0.0), span.end_s)
