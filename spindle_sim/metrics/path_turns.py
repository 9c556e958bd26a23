"""What a span of an executed timeline waited for: each device does one thing after the other."""

from collections.abc import Iterator, Sequence

from spindle_sim.metrics.path_links import (
    ROUNDING_S,
    Cause,
    Operation,
    Track,
    Why,
    inputs_of,
    operation_of,
)
from spindle_sim.plan import Plan
from spindle_sim.timeline import Kind, Span, Timeline

__all__ = ["ExecutedCauses"]

_WHY = {
    Kind.COMPUTE: Why.ORDER,
    Kind.SEND: Why.ORDER,
    Kind.RECEIVE: Why.ORDER,
    Kind.COPY: Why.ORDER,
    Kind.SYNC: Why.GRADIENTS,
    Kind.OPTIMIZER: Why.STEP,
}
_ARRIVES = (Kind.RECEIVE, Kind.COPY)


class ExecutedCauses:
    """The causes in a timeline whose spans are what each rank spent its own time on."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        """Sort the spans by device, and by what they meet."""
        own: dict[int, list[Span]] = {}
        for span in timeline.spans:
            own.setdefault(span.device, []).append(span)
        self._all = {device: Track(spans) for device, spans in own.items()}
        self._compute = {
            device: Track(span for span in spans if span.kind is Kind.COMPUTE)
            for device, spans in own.items()
        }
        self._posted = Track(span for span in timeline.spans if span.kind is Kind.SEND)
        self._synced = Track(span for span in timeline.spans if span.kind is Kind.SYNC)
        self._inputs = inputs_of(plan)
        self._operations: dict[Operation, list[Span]] = {}
        for span in timeline.spans:
            if span.kind is Kind.COMPUTE:
                self._operations.setdefault(operation_of(span), []).append(span)

    def of(self, span: Span, begin_s: float, until_s: float) -> Iterator[Cause]:
        """Give what a span waited for: whoever it met last, else its own device."""
        last = list(self._met(span, begin_s)) if span.wait_s > 0.0 else []
        own = list(self._at(span.device, begin_s, span, _WHY[span.kind]))
        if not last and span.kind is Kind.COMPUTE and not _explains(own, begin_s):
            last = list(self._gathered(span))
        yield from last or own

    def _met(self, span: Span, begin_s: float) -> Iterator[Cause]:
        """Give what those were about who came last to a message or collective."""
        if span.kind is Kind.RECEIVE:
            for sent in self._posted.began(begin_s):
                if self._gives(sent, span):
                    yield from self._at(sent.device, begin_s, sent, Why.INPUT)
                    return
            for giver in self._inputs.get((span.slice, span.phase), ()):  # nobody noted sending
                for given in self._operations.get((giver, span.phase, span.micro_batch), ()):
                    if given.end_s <= begin_s + ROUNDING_S:
                        yield Cause(given, given.end_s, Why.INPUT)
        if span.kind is Kind.SYNC:
            # The last one waited for nobody, or launched it then.
            for other in self._synced.began(begin_s):
                if other.device != span.device and not other.wait_s:
                    yield from self._at(other.device, begin_s, other, Why.LAST_RANK)

    def _gathered(self, span: Span) -> Iterator[Cause]:
        """Give what kept the others of its slice that begin with it, and did so until then."""
        for one in self._operations[operation_of(span)]:
            if one is not span and abs(one.start_s - span.start_s) <= ROUNDING_S:
                found = list(self._at(one.device, one.start_s, one, Why.LAST_RANK))
                if _explains(found, one.start_s):
                    yield from found

    def _gives(self, sent: Span, received: Span) -> bool:
        givers = self._inputs.get((received.slice, received.phase), ())
        return (
            sent.slice in givers
            and sent.phase is received.phase
            and sent.micro_batch == received.micro_batch
        )

    def _at(self, device: int, time_s: float, span: Span, why: Why) -> Iterator[Cause]:
        """Give what a device was about at a time, or had done last."""
        running = self._compute[device].covering(time_s)
        if running is not None and running is not span:
            yield Cause(running, time_s, why)
        done = self._all[device].ended(time_s, but=span)
        if done is not None:
            arrived = span.kind is Kind.COMPUTE and done.kind in _ARRIVES
            yield Cause(done, done.end_s, Why.INPUT if arrived else why)


def _explains(causes: Sequence[Cause], begin_s: float) -> bool:
    return any(begin_s - cause.until_s <= ROUNDING_S for cause in causes)
