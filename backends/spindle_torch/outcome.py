"""What a run leaves behind: its result, or what each failed rank says; JSON files, no torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from spindle_sim.backend import Execution
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.timeline import Kind, MemorySample, Phase, Span, Timeline

__all__ = [
    "NOTES_NAME",
    "Failure",
    "FailureKind",
    "execution_from_json",
    "execution_to_json",
    "first_cause",
    "read_failures",
    "write_failure",
]


NOTES_NAME = "notes"  # the file for what is told while a run goes on, a line each


class FailureKind(StrEnum):
    """How a rank ended, the likeliest cause of a failed run first."""

    REFUSED = "refused"  # an input or the plan is wrong
    RAISED = "raised"  # its own computation failed
    DIED = "died"  # killed by a signal
    STALLED = "stalled"  # still at work when others had waited for too long
    LOST = "lost"  # others were gone or didn't come in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What one rank says about its end, or its launcher about it."""

    rank: int
    kind: FailureKind
    message: str
    exit_code: int

    def __str__(self) -> str:
        return (
            self.message
            if self.kind is FailureKind.REFUSED
            else f"rank {self.rank}: {self.message}"
        )


def write_failure(folder: Path, failure: Failure) -> None:
    """Leave a failure where the launcher looks for it."""
    name = f"{failure.kind}-{failure.rank}.json"
    write_atomically(folder / name, json.dumps(asdict(failure)).encode())


def read_failures(folder: Path) -> tuple[Failure, ...]:
    """Give all failures that were left."""
    found = []
    for path in sorted(folder.glob("*-*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        found.append(Failure(**{**fields, "kind": FailureKind(fields["kind"])}))
    return tuple(found)


def first_cause(failures: Sequence[Failure]) -> Failure | None:
    """Give the failure that the others follow from; None if there is none.

    Once one rank is gone its peers fail too: whoever only lost others isn't the cause while there
    is anybody else.
    """
    order = list(FailureKind)
    return min(failures, key=lambda item: (order.index(item.kind), item.rank), default=None)


def execution_to_json(execution: Execution) -> str:
    """Give the result as one JSON object."""
    return json.dumps(asdict(execution), allow_nan=False)


def execution_from_json(text: str) -> Execution:
    """Give the result back."""
    document: dict[str, Any] = json.loads(text)
    timeline = document["timeline"]
    spans = tuple(
        Span(**{**span, "kind": Kind(span["kind"]), "phase": Phase(span["phase"])})
        for span in timeline["spans"]
    )
    memory = tuple(MemorySample(**sample) for sample in timeline["memory"])
    return Execution(
        timeline=Timeline(**{**timeline, "spans": spans, "memory": memory}),
        iterations_s=tuple(document["iterations_s"]),
        losses=tuple(document["losses"]),
        first_step=document["first_step"],
    )
