"""Slices: every operator exactly once and in order, on a valid allocation of existing devices."""

from collections import Counter
from collections.abc import Iterator

from spindle_sim.cluster import Cluster
from spindle_sim.plan.model import Slice
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.subject import Subject
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_allocations", "check_coverage"]


def check_coverage(subject: Subject) -> Iterator[Violation]:
    """Give the operators that are in no slice, in two, or out of order."""
    for name, count in Counter(item.id for item in subject.plan.slices).items():
        if count > 1:
            yield _violation("slice-id", (name,), f"slice {name}: is given {count} times")
    for item in subject.plan.slices:
        if item.metaop not in subject.metaops:
            message = f"slice {item.id}: MetaOp {item.metaop} isn't in the workload"
            yield _violation("reference", (item.id, item.metaop), message)
    for name, metaop in subject.metaops.items():
        yield from _run(metaop, subject.runs.get(name, ()))


def _run(metaop: ExpectedMetaOp, run: tuple[Slice, ...]) -> Iterator[Violation]:
    reached, previous = 0, "the beginning"
    for item in run:
        ids = (item.id, metaop.id)
        if item.num_ops < 1:
            yield _violation("coverage", ids, f"slice {item.id}: has no operators")
            continue
        if item.first_op != reached:
            problem = "are skipped" if item.first_op > reached else "run twice or out of order"
            first, last = sorted((item.first_op, reached))
            message = (
                f"slice {item.id}: begins at operator {item.first_op} of {metaop.id}, but"
                f" {previous} leads to {reached}: operators {first} to {last - 1} {problem}"
            )
            yield _violation("coverage", ids, message)
        reached, previous = item.first_op + item.num_ops, f"slice {item.id}"
    if reached != metaop.num_ops:
        message = (
            f"MetaOp {metaop.id}: {previous} leads to operator {reached} of {metaop.num_ops};"
            " every operator must be in exactly one slice"
        )
        yield _violation("coverage", (metaop.id, *(item.id for item in run[-1:])), message)


def check_allocations(subject: Subject) -> Iterator[Violation]:
    """Give the slices whose devices or parallel degrees aren't valid."""
    cluster = subject.plan.cluster
    degrees: dict[str, Slice] = {}
    for item in subject.slices.values():
        metaop = subject.metaops[item.metaop]
        for message in _allocation(item, metaop, cluster):
            yield _violation("allocation", (item.id,), f"slice {item.id}: {message}")
        first = degrees.setdefault(metaop.parameter_set, item)
        if first.tp != item.tp:
            message = (
                f"slice {item.id}: tp is {item.tp}, but slice {first.id} shares parameters"
                f" {metaop.parameter_set} with tp {first.tp}; their shards would differ"
            )
            yield _violation("allocation", (item.id, first.id), message)


def _allocation(item: Slice, metaop: ExpectedMetaOp, cluster: Cluster) -> Iterator[str]:
    batch = metaop.operator.batch_size
    if not item.devices:
        yield "has no devices"
    if item.dp < 1 or item.tp < 1:
        yield f"dp {item.dp} and tp {item.tp} must be at least 1"
        return
    if item.dp * item.tp != len(item.devices):
        yield f"dp {item.dp} x tp {item.tp} isn't its number of devices, {len(item.devices)}"
    if batch % item.dp:
        yield f"dp {item.dp} doesn't divide the batch {batch} of {metaop.id}"
    for device, count in Counter(item.devices).items():
        if count > 1:
            yield f"device {device} is listed {count} times"
        if not 0 <= device < cluster.num_devices:
            yield (
                f"device {device} doesn't exist (cluster {cluster.name} has"
                f" 0 to {cluster.num_devices - 1})"
            )
    for start in range(0, len(item.devices), item.tp):
        ranks = item.devices[start : start + item.tp]
        if len({cluster.island_of(device) for device in ranks}) > 1:
            listed = ", ".join(map(str, ranks))
            yield f"tensor-parallel devices {listed} aren't in one device island"


def _violation(rule: str, ids: tuple[str, ...], message: str) -> Violation:
    return Violation(rule=rule, ids=ids, message=message)
