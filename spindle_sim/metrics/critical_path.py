"""Why an iteration takes as long as it does: the chain of spans that no other one could shorten.

From the end of the iteration back to its start each step is led to by what it waited for last. The
steps follow one another without a hole, so that their lengths add up to the iteration; what no span
explains is a step too, a gap that says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from typing import NamedTuple, Protocol

from spindle_sim.metrics.path_causes import SimulatedCauses
from spindle_sim.metrics.path_links import ROUNDING_S, Cause, Why
from spindle_sim.metrics.path_turns import ExecutedCauses
from spindle_sim.plan import Plan
from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = ["CriticalPath", "PathKind", "PathShare", "PathStep", "Why", "critical_path"]

_SIMULATOR = "simulator"


class PathKind(StrEnum):
    """What the time of a step goes to."""

    COMPUTE = "compute"
    TRANSFER = "transfer"  # activations or gradients between slices
    SYNCHRONIZATION = "synchronization"  # of gradients, or gathering of parameters
    STEP = "step"  # the optimizer's
    GAP = "gap"  # no span explains it: `why` says what is known


_KINDS = {
    Kind.COMPUTE: PathKind.COMPUTE,
    Kind.SEND: PathKind.TRANSFER,
    Kind.RECEIVE: PathKind.TRANSFER,
    Kind.COPY: PathKind.TRANSFER,
    Kind.SYNC: PathKind.SYNCHRONIZATION,
    Kind.OPTIMIZER: PathKind.STEP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One step of the path, on one device; `why` it begins when it does.

    The end of a step is the start of the next, to the bit. `phase` is empty for a gap; `task`,
    `metaop` and `slice` where they don't apply.
    """

    device: int
    start_s: float
    end_s: float
    kind: PathKind
    why: Why
    phase: Phase | None = None
    task: str = ""
    metaop: str = ""
    slice: str = ""
    micro_batch: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """The part of a path that belongs to one name (a task, a MetaOp, a device, a kind)."""

    name: str
    seconds: float
    compute_s: float = 0.0
    transfer_s: float = 0.0
    synchronization_s: float = 0.0
    step_s: float = 0.0
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The steps from the start of an iteration to its end."""

    steps: tuple[PathStep, ...]
    iteration_s: float

    def by_kind(self) -> tuple[PathShare, ...]:
        """Give the seconds of each kind, of all kinds, in their order."""
        found = {share.name: share for share in _shares((step.kind, step) for step in self.steps)}
        return tuple(found.get(kind, PathShare(name=kind.value, seconds=0.0)) for kind in PathKind)

    def by_task(self) -> tuple[PathShare, ...]:
        """Give the seconds of each task, the longest first; "" is what no task has."""
        return _shares((step.task, step) for step in self.steps)

    def by_metaop(self) -> tuple[PathShare, ...]:
        """Give the seconds of each MetaOp, the longest first; "" is what none has."""
        return _shares((step.metaop, step) for step in self.steps)

    def by_device(self) -> tuple[PathShare, ...]:
        """Give the seconds on each device that the path comes by, the longest first."""
        return _shares((str(step.device), step) for step in self.steps)


class _Causes(Protocol):
    """Tells what a span may have waited for."""

    def of(self, span: Span, begin_s: float, until_s: float) -> Iterator[Cause]:
        """Give the candidates, of those that ended at one time the likelier first."""
        ...


class _Link(NamedTuple):
    """A span that is on the path until `end_s`, and what led to it."""

    span: Span
    start_s: float
    end_s: float
    cause: Cause | None


def critical_path(plan: Plan, timeline: Timeline) -> CriticalPath:
    """Give the critical path of an iteration of a plan, simulated or executed.

    It ends with the span that ends last. Of an executed timeline a device's spans follow one
    another; a receive or synchronization that waited leads to whoever came last. Linear in spans,
    but for sorting them.
    """
    iteration_s = timeline.iteration_s
    if not timeline.spans:
        return CriticalPath(steps=(), iteration_s=iteration_s)
    simulated = timeline.backend == _SIMULATOR
    causes: _Causes
    causes = SimulatedCauses(plan, timeline) if simulated else ExecutedCauses(plan, timeline)
    steps: list[PathStep] = []  # from the last to the first
    for link in _links(timeline, causes):
        steps += _steps(link, simulated=simulated)
    return CriticalPath(
        steps=tuple(step for step in reversed(steps) if step.end_s > step.start_s),
        iteration_s=iteration_s,
    )


def _links(timeline: Timeline, causes: _Causes) -> Iterator[_Link]:
    """Walk from the span that ends last to one that waited for nothing."""
    span = max(timeline.spans, key=lambda one: (one.end_s, one.start_s, -one.device))
    end_s = span.end_s
    seen = {id(span)}  # spans that take no time could lead to each other
    while True:
        begin_s = min(span.start_s + (span.wait_s if span.kind is not Kind.COMPUTE else 0), end_s)
        cause = max(
            (one for one in causes.of(span, begin_s, end_s) if id(one.span) not in seen),
            key=lambda one: one.until_s,
            default=None,
        )
        if cause is None:
            yield _Link(span, begin_s, end_s, None)
            return
        # A collective may have begun before the last of what it waits for.
        start_s = max(begin_s, min(cause.until_s, end_s))
        yield _Link(span, start_s, end_s, cause)
        span, end_s = (
            cause.span,
            start_s if start_s - cause.until_s <= ROUNDING_S else cause.until_s,
        )
        seen.add(id(span))


def _steps(link: _Link, *, simulated: bool) -> Iterator[PathStep]:
    """Give the steps of one link, the last first: the span itself, then the gap before it."""
    span, start_s, end_s, cause = link
    why = Why.START if cause is None else cause.why
    computing_s = start_s
    if span.kind is Kind.COMPUTE and span.wait_s:
        # Where in the span it waited isn't known.
        computing_s = min(start_s + span.wait_s, end_s)
    yield _step(span, computing_s, end_s, _KINDS[span.kind], why)
    yield _step(span, start_s, computing_s, PathKind.SYNCHRONIZATION, why)
    if cause is None:
        yield _gap(span.device, 0.0, start_s, Why.LATE)
    elif start_s - cause.until_s > ROUNDING_S:
        reason = Why.UNEXPLAINED if simulated else Why.ENGINE
        yield _gap(span.device, cause.until_s, start_s, reason)


def _step(span: Span, start_s: float, end_s: float, kind: PathKind, why: Why) -> PathStep:
    return PathStep(
        device=span.device,
        start_s=start_s,
        end_s=end_s,
        kind=kind,
        why=why,
        phase=span.phase,
        task=span.task,
        metaop=span.metaop,
        slice=span.slice,
        micro_batch=span.micro_batch,
    )


def _gap(device: int, start_s: float, end_s: float, why: Why) -> PathStep:
    return PathStep(device=device, start_s=start_s, end_s=end_s, kind=PathKind.GAP, why=why)


def _shares(named: Iterator[tuple[str, PathStep]]) -> tuple[PathShare, ...]:
    """Sum up steps by name, the longest first; ties by name."""
    lengths: dict[str, dict[PathKind, list[float]]] = {}
    for name, step in named:
        lengths.setdefault(name, {}).setdefault(step.kind, []).append(step.duration_s)
    shares = [
        PathShare(
            name=str(name),
            seconds=fsum(length for own in kinds.values() for length in own),
            **{f"{kind}_s": fsum(own) for kind, own in kinds.items()},
        )
        for name, kinds in lengths.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.seconds, share.name)))
