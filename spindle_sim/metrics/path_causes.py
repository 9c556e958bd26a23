"""What a span of a simulated timeline waited for, by the rules of the simulator (simulator.md)."""

from collections.abc import Iterable, Iterator, Sequence

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
from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = ["SimulatedCauses"]

_NOTHING = Track(())


class SimulatedCauses:
    """The causes in a timeline of which every rule is known: nothing waits for anything else."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        """Sort the spans by what waits for them."""
        compute: dict[int, list[Span]] = {}
        syncs: dict[int, list[Span]] = {}
        steps: dict[int, list[Span]] = {}
        operations: dict[Operation, list[Span]] = {}
        arrivals: dict[Operation, list[Span]] = {}
        self._together: dict[tuple[float, float, float], list[Span]] = {}
        for span in timeline.spans:
            match span.kind:
                case Kind.COMPUTE:
                    compute.setdefault(span.device, []).append(span)
                    operations.setdefault(operation_of(span), []).append(span)
                case Kind.RECEIVE | Kind.COPY:
                    arrivals.setdefault(operation_of(span), []).append(span)
                case Kind.SYNC:
                    syncs.setdefault(span.device, []).append(span)
                    self._together.setdefault(_meeting(span), []).append(span)
                case Kind.OPTIMIZER:
                    steps.setdefault(span.device, []).append(span)
        self._compute, self._syncs, self._steps = map(_tracks, (compute, syncs, steps))
        self._arrivals, self._operations = arrivals, operations
        self._known: dict[tuple[Operation, bool], Track] = {}
        self._inputs = inputs_of(plan)
        self._sets = {metaop.id: metaop.parameter_set for metaop in plan.metaops}
        self._num_ops = {item.id: item.num_ops for item in plan.slices}
        self._scatters = plan.shard_gradients
        self._pool = plan.parameter_groups
        self._groups: dict[int, set[int]] = {}  # by device: numbers in the pool
        for number, group in enumerate(self._pool):
            for device in group.devices:
                self._groups.setdefault(device, set()).add(number)

    def of(self, span: Span, begin_s: float, until_s: float) -> Iterator[Cause]:
        """Give what a span may have waited for."""
        match span.kind:
            case Kind.COMPUTE:
                yield from self._of_compute(span)
            case Kind.SYNC:
                yield from self._of_sync(span, begin_s, until_s)
            case Kind.OPTIMIZER:
                yield from self._of_step(span, begin_s)
            case Kind.SEND:
                yield from self._ended(operation_of(span), begin_s, span.device, Why.INPUT)
            case _:
                giver = span.device if span.peer is None else span.peer
                for source in self._inputs.get((span.slice, span.phase), ()):
                    operation = source, span.phase, span.micro_batch
                    yield from self._ended(operation, begin_s, giver, Why.INPUT)

    def _of_compute(self, span: Span) -> Iterator[Cause]:
        """Give the last of its inputs to come, and what its devices did before."""
        operation, begin_s = operation_of(span), span.start_s
        yield from _nearest(self._track(operation, arrives=True), begin_s, span.device, Why.INPUT)
        for source in self._inputs.get(operation[:2], ()):
            yield from self._ended((source, *operation[1:]), begin_s, span.device, Why.INPUT)
        together = [one for one in self._operations[operation] if one.start_s == begin_s]
        for one in sorted(together, key=lambda one: (one is not span, one.device)):
            before = self._compute[one.device].before(one)
            if before is not None:
                yield Cause(before, before.end_s, Why.ORDER)

    def _of_sync(self, span: Span, begin_s: float, until_s: float) -> Iterator[Cause]:
        """Give what its devices computed and synchronized before, or compute meanwhile."""
        devices = self._members(span)
        gathers = any(self._after_step(device, begin_s) for device in devices)
        if self._scatters and not gathers:
            yield from self._last_scattered(span, devices, begin_s, until_s)
        for device in devices:
            turn = self._syncs[device].ended(begin_s, but=span)
            if turn is not None:
                yield Cause(turn, turn.end_s, Why.TURN)
            stepped = self._after_step(device, begin_s)
            if stepped is not None:
                yield Cause(stepped, stepped.end_s, Why.STEP)
            computed = self._compute.get(device, _NOTHING).ended(begin_s)
            if computed is not None:
                why = Why.GRADIENTS if device == span.device else Why.LAST_RANK
                yield Cause(computed, computed.end_s, why)
        running = [one for one in self._running(span, devices, begin_s) if one.end_s > begin_s]
        if running:
            # An operator's gradients are complete at one of equal parts of its slice.
            best = min(running, key=lambda one: (self._from_part(one, begin_s), one.device))
            yield Cause(best, begin_s, Why.GRADIENTS)

    def _last_scattered(
        self, span: Span, devices: Sequence[int], begin_s: float, until_s: float
    ) -> Iterator[Cause]:
        """Give the backward that the last bucket of a scattering waits for: one span has all."""
        ends = [one for one in self._running(span, devices, begin_s) if one.end_s <= until_s]
        lagging = any(
            abs(turn.end_s - begin_s) <= ROUNDING_S
            for device in devices
            for turn in [self._syncs[device].ended(begin_s, but=span)]
            if turn is not None
        )
        if ends and not lagging:
            last = max(ends, key=lambda one: (one.end_s, -one.device))
            yield Cause(last, last.end_s, Why.GRADIENTS)

    def _of_step(self, span: Span, begin_s: float) -> Iterator[Cause]:
        """Give the device's last synchronization and computation."""
        for tracks in (self._syncs, self._compute):
            last = tracks.get(span.device, _NOTHING).ended(begin_s)
            if last is not None:
                yield Cause(last, last.end_s, Why.STEP)
        if span.device not in self._syncs:  # free, so that they have no spans
            for device in self._linked(span.device):
                last = self._compute.get(device, _NOTHING).ended(begin_s)
                if last is not None:
                    yield Cause(last, last.end_s, Why.LAST_RANK)

    def _linked(self, device: int) -> Sequence[int]:
        """Give the devices that it synchronizes with, and those that these do, in their turns."""
        found, pending, met = {device}, [device], set[int]()
        while pending:
            numbers = self._groups.get(pending.pop(), set()) - met
            met |= numbers
            more = {one for number in numbers for one in self._pool[number].devices} - found
            found |= more
            pending += more
        return sorted(found - {device})

    def _members(self, span: Span) -> Sequence[int]:
        """Give the devices of a collective, the span's own first.

        Another one that begins and ends with it may be equally large: those that share no
        parameters with this device aren't in its own.
        """
        own = self._groups.get(span.device, set())
        devices = {
            one.device
            for one in self._together[_meeting(span)]
            if not own.isdisjoint(self._groups.get(one.device, ()))
        }
        return sorted(devices | {span.device}, key=lambda device: (device != span.device, device))

    def _running(self, span: Span, devices: Iterable[int], time_s: float) -> Iterator[Span]:
        """Give the backwards that go on at a time and whose gradients a collective may sum."""
        own = self._groups.get(span.device, set())
        for device in devices:
            one = self._compute.get(device, _NOTHING).covering(time_s)
            if one is not None and one.phase is Phase.BACKWARD:
                shared = own & self._groups.get(device, set())
                if any(self._sets.get(one.metaop) in self._held(number) for number in shared):
                    yield one

    def _held(self, number: int) -> frozenset[str]:
        return frozenset(part.parameter_set for part in self._pool[number].parameter_sets)

    def _from_part(self, span: Span, time_s: float) -> float:
        """Give how far an instant is from the nearest end of an operator, in operators."""
        done = (time_s - span.start_s) / span.duration_s * self._num_ops.get(span.slice, 1)
        return abs(done - round(done))

    def _after_step(self, device: int, time_s: float) -> Span | None:
        return self._steps.get(device, _NOTHING).ended(time_s)

    def _ended(self, operation: Operation, time_s: float, device: int, why: Why) -> Iterator[Cause]:
        yield from _nearest(self._track(operation, arrives=False), time_s, device, why)

    def _track(self, operation: Operation, *, arrives: bool) -> Track:
        """Give the spans of an operation, or of what arrives for it, by time."""
        key = operation, arrives
        if key not in self._known:
            spans = self._arrivals if arrives else self._operations
            self._known[key] = Track(spans.get(operation, ()))
        return self._known[key]


def _nearest(track: Track, time_s: float, device: int, why: Why) -> Iterator[Cause]:
    """Give the last to end by a time: of several that on the device, else the lowest device's."""
    ended = list(track.ended_by(time_s))
    if ended:
        one = min(ended, key=lambda span: (span.device != device, span.device))
        yield Cause(one, one.end_s, why)


def _meeting(span: Span) -> tuple[float, float, float]:
    return span.start_s, span.end_s, span.bytes


def _tracks(spans: dict[int, list[Span]]) -> dict[int, Track]:
    return {device: Track(own) for device, own in spans.items()}
