"""What `train` is to do: start ranks, or be one of those that another process started."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from spindle_torch.work import Work
from spindle_torch.worker import Situation, WorkerOptions

__all__ = ["ASSIGNMENT", "Assignment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The part of one rank, as its launcher says it."""

    options: WorkerOptions
    situation: Situation
    wrap: Callable[[Work], Work]
    tell: Callable[[str], None]


ASSIGNMENT: ContextVar[Assignment | None] = ContextVar("ASSIGNMENT", default=None)
"""Set while a rank runs the user's script."""
