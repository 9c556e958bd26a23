"""The plan as a whole: its version, the hashes of its inputs, numbers that are numbers."""

import math
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from spindle_sim.plan.document import input_hash
from spindle_sim.plan.model import FORMAT_VERSION, Plan
from spindle_sim.plan.rules.subject import Subject
from spindle_sim.plan.rules.violation import Violation

__all__ = ["MAX_NUMBER", "check_inputs", "check_sizes"]

KNOWN_VERSIONS = ("1.0", FORMAT_VERSION)
_NEWER_FIELDS = ("rounds", "shard_gradients", "shard_parameters", "overlap_sync")
MAX_NUMBER = 10**30  # of anything here: what is larger is no quantity, and may not fit a float


def check_inputs(subject: Subject) -> Iterator[Violation]:
    """Give what is wrong with version, hashes and numbers."""
    plan = subject.plan
    if plan.format_version not in KNOWN_VERSIONS:
        known = ", ".join(map(repr, KNOWN_VERSIONS))
        yield Violation(
            rule="format-version",
            ids=(plan.format_version,),
            message=f"format_version is {plan.format_version!r}, known are {known}",
        )
    newer = [
        *(
            name
            for name in ("rounds", "shard_gradients", "shard_parameters")
            if getattr(plan, name)
        ),
        *(n for n in ("selective", "sequence_parallel") if any(getattr(s, n) for s in plan.slices)),
    ]
    if newer and plan.format_version == KNOWN_VERSIONS[0]:
        message = f"format_version is {plan.format_version!r}, which has no {', '.join(newer)}"
        yield Violation(rule="format-version", ids=(plan.format_version,), message=message)
    for name in ("workload", "cluster"):
        stated, found = getattr(plan.inputs, name), input_hash(getattr(plan, name))
        if stated != found:
            yield Violation(
                rule="input-hash",
                ids=(f"inputs.{name}",),
                message=f"inputs.{name} is {stated[:12]}..., but the {name} in the plan hashes to"
                f" {found[:12]}...: it was edited after planning; make the plan again",
            )
    for where, name, value in _numbers(plan):
        if not math.isfinite(value) or value < 0:
            yield Violation(
                rule="number",
                ids=(where,),
                message=f"{where}: {name} is {value}; it must be finite and not negative",
            )


def check_sizes(plan: Plan) -> Iterator[Violation]:
    """Give the numbers that are too large to calculate with, or to count to."""
    for where, name, value in _numbers(plan):
        if MAX_NUMBER < abs(value) < math.inf:
            message = f"{where}: {name} is beyond {MAX_NUMBER:.0e}, where no such number can be"
            yield Violation(rule="number", ids=(where,), message=message)
    largest = max((task.batch_size for task in plan.workload.tasks), default=1)
    for one in plan.rounds:
        if one.micro_batches > largest:  # to order a billion of them would take hours
            message = (
                f"round {one.round}: {one.micro_batches} micro-batches are more than the {largest}"
                " samples of the workload's largest batch"
            )
            yield Violation(rule="round", ids=(f"round {one.round}",), message=message)


def _numbers(plan: Plan) -> Iterator[tuple[str, str, float]]:
    yield "plan", "optimum_s", plan.optimum_s
    for number, group in enumerate(plan.parameter_groups):
        for part in group.parameter_sets:
            for name in ("first_op", "num_ops"):
                yield f"parameter group {number}", name, getattr(part, name)
    sections: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("metaop", plan.metaops),
        ("slice", plan.slices),
        ("flow", plan.flows),
        ("parameter group", plan.parameter_groups),
        ("memory", plan.memory),
        ("round", plan.rounds),
    )
    for section, items in sections:
        for index, item in enumerate(items):
            kind: Any = type(item)
            for name in _number_names(kind):
                yield _name(section, index, item), name, getattr(item, name)


def _name(section: str, index: int, item: object) -> str:
    if section == "memory":
        return f"memory of device {getattr(item, 'device', index)}"
    return f"{section} {getattr(item, 'id', getattr(item, 'round', index))}"


@cache
def _number_names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.type in (int, float))
