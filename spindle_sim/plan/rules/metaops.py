"""MetaOps cover exactly the workload's operators and say about them what the workload says."""

from collections import Counter
from collections.abc import Iterator

from spindle_sim.plan.model import MetaOp
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.subject import Subject, close
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_metaops"]


def check_metaops(subject: Subject) -> Iterator[Violation]:
    """Give what is wrong with the MetaOps."""
    given = Counter(metaop.id for metaop in subject.plan.metaops)
    for name, count in given.items():
        if count > 1:
            yield _violation(name, f"is given {count} times")
        if name not in subject.metaops:
            yield _violation(name, "is no use of a block (task/use/block) of the workload")
    for name, expected in subject.metaops.items():
        if name not in given:
            message = f"is missing: its {expected.num_ops} operators are in no MetaOp"
            yield _violation(name, message)
    for metaop in subject.plan.metaops:
        if metaop.id in subject.metaops:
            yield from _differences(metaop, subject.metaops[metaop.id])
            if subject.plan.format_version != "1.0":  # which didn't have the field
                yield from _attention(metaop, subject.metaops[metaop.id])


def _attention(metaop: MetaOp, expected: ExpectedMetaOp) -> Iterator[Violation]:
    if not close(metaop.saved_attention_bytes, expected.saved_attention_bytes):
        yield _wrong(metaop, "saved_attention_bytes", expected.saved_attention_bytes)


def _differences(metaop: MetaOp, expected: ExpectedMetaOp) -> Iterator[Violation]:
    node, cost = expected.operator, expected.operator.cost
    exact: dict[str, object] = {
        "task": node.task,
        "module": node.module,
        "kind": node.operator.kind,
        "num_ops": expected.num_ops,
        "batch": node.batch_size,
        "level": expected.level,
        "parameter_set": expected.parameter_set,
        "parameters": node.operator.parameters,
        "sharded_parameters": node.operator.sharded_parameters,
        "frozen": expected.frozen,
        "backward": expected.backward,
        "batch_coupled": cost.gathered_bytes > 0,
    }
    for name, value in exact.items():
        if getattr(metaop, name) != value:
            yield _wrong(metaop, name, value)
    if sorted(metaop.predecessors) != list(expected.predecessors):
        yield _wrong(metaop, "predecessors", expected.predecessors)
    sizes = {
        "flops": cost.flops * node.items * node.batch_size,
        "input_bytes": expected.input_bytes / node.batch_size,
        "output_bytes": cost.output_bytes * node.items,
        "context_bytes": expected.context_bytes / node.batch_size,
        "saved_bytes": cost.saved_bytes * node.items,
        "saved_replicated_bytes": cost.saved_replicated_bytes * node.items,
    }
    for name, size in sizes.items():
        if not close(getattr(metaop, name), size):
            yield _wrong(metaop, name, size)


def _wrong(metaop: MetaOp, name: str, value: object) -> Violation:
    found = getattr(metaop, name)
    return _violation(metaop.id, f"{name} is {found}, by the workload it is {value}")


def _violation(name: str, message: str) -> Violation:
    return Violation(rule="metaop", ids=(name,), message=f"MetaOp {name}: {message}")
