"""Flows: exactly those that slices of one MetaOp and the edges between MetaOps demand."""

from collections import Counter
from collections.abc import Iterator

from spindle_sim.plan.model import Flow
from spindle_sim.plan.rules.subject import Subject, close
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_flows"]


def check_flows(subject: Subject) -> Iterator[Violation]:
    """Give the flows that are missing, too many, or of the wrong size."""
    expected = {
        (source.id, target.id): (size_bytes, gradient)
        for source, target, size_bytes, gradient in subject.joined_slices()
    }
    ends = [(flow.source_slice, flow.target_slice) for flow in subject.plan.flows]
    for (source, target), count in Counter(ends).items():
        if count > 1:
            yield _violation(source, target, f"is given {count} times")
    for source, target in expected.keys() - set(ends):
        yield _violation(source, target, "is missing: the target needs the source's output")
    for flow in subject.plan.flows:
        end = (flow.source_slice, flow.target_slice)
        unknown = [name for name in end if name not in subject.slices]
        if unknown:
            yield _violation(*end, f"there is no slice {', '.join(unknown)}")
        elif end not in expected:
            yield _violation(*end, "joins slices between which no data flows")
        else:
            yield from _differences(flow, *expected[end])


def _differences(flow: Flow, size_bytes: float, gradient: bool) -> Iterator[Violation]:  # noqa: FBT001
    if not close(flow.bytes, size_bytes):
        message = f"carries {flow.bytes} bytes, by the workload it is {size_bytes}"
        yield _violation(flow.source_slice, flow.target_slice, message)
    if flow.gradient != gradient:
        wanted = "flows back" if gradient else "doesn't flow back: nothing before it trains"
        message = f"gradient is {str(flow.gradient).lower()}, but the gradient {wanted}"
        yield _violation(flow.source_slice, flow.target_slice, message)


def _violation(source: str, target: str, message: str) -> Violation:
    return Violation(
        rule="flow", ids=(source, target), message=f"flow {source} -> {target}: {message}"
    )
