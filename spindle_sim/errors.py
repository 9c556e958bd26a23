"""Every error that a user can cause, as one tree; a broken invariant is an assert instead.

SpindleError               exit 1
├── UsageError             exit 2: a flag or an argument is wrong
├── InputError             exit 3: a file (workload, cluster, plan, profile, checkpoint) is wrong
│   └── PlanError          exit 3: a plan of another version or shape, or one that breaks a rule
├── InfeasibleError        exit 4: the input is right, but no plan for it exists
└── ExecutionError         exit 5: a plan is right, but its run on real devices failed
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

__all__ = [
    "ExecutionError",
    "InfeasibleError",
    "InputError",
    "PlanError",
    "Problem",
    "SpindleError",
    "UsageError",
    "suggestion",
]

_LISTED_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in an input: where it is, what was found, what to do."""

    message: str
    source: str = ""  # file name, or what stands for it
    line: int | None = None
    path: str = ""  # dotted path of the field, "tasks[0].flows[1].source"

    def __str__(self) -> str:
        place = self.source
        if self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class SpindleError(Exception):
    """A user's mistake or limit, with every problem that was found."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(
            Problem(message=problem) if isinstance(problem, str) else problem
            for problem in problems
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(SpindleError):
    """A flag or an argument has a wrong value."""

    exit_code = 2


class InputError(SpindleError, ValueError):
    """A file is missing, malformed or contradicts itself.

    A `ValueError` too, so that a validator which calls our constructors collects it with the rest.
    """

    exit_code = 3


class PlanError(InputError):
    """A plan has another version or shape, or breaks a rule that every plan keeps."""


class InfeasibleError(SpindleError):
    """The input is valid, but no plan for it exists: memory or devices are short."""

    exit_code = 4


class ExecutionError(SpindleError):
    """The plan is right, but what ran it failed: a rank raised, died or waited too long."""

    exit_code = 5


def suggestion(word: str, known: Iterable[str]) -> str:
    """Give "did you mean 'a100'?" for the nearest known word, else the list of known words."""
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    if near:
        return f"did you mean {lowered[near[0]]!r}?"
    if len(names) > _LISTED_NAMES:
        names = [*names[:_LISTED_NAMES], "..."]
    return f"known are: {', '.join(names)}" if names else "none is known here"
