"""What ranks do one for all, or each its part: where one fails, all raise its error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from spindle_sim.errors import (
    ExecutionError,
    InfeasibleError,
    InputError,
    PlanError,
    Problem,
    SpindleError,
    UsageError,
)
from spindle_torch.telling import all_gather_json, broadcast_json

__all__ = ["from_first", "together"]

_Made = TypeVar("_Made")
_ERRORS: dict[str, type[SpindleError]] = {
    kind.__name__: kind
    for kind in (SpindleError, UsageError, InputError, PlanError, InfeasibleError, ExecutionError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How it ended on one rank: the name of its error, if it raised one."""

    error: str = ""
    problems: tuple[Problem, ...] = ()


def from_first(make: Callable[[], _Made], kind: type[_Made]) -> _Made:
    """Give what the first rank makes, which is of type `kind`, or raise its error, on every rank.

    Raises:
        SpindleError: the first rank raised it.
    """
    made, end = (None, _End()) if dist.get_rank() else _tried(make)
    _check(broadcast_json(end, _End))
    return broadcast_json(made, kind)


def together(make: Callable[[], _Made]) -> _Made:
    """Give what this rank makes, once all have made theirs.

    Raises:
        SpindleError: a rank raised it; of several the first one's.
    """
    made, own = _tried(make)
    for end in all_gather_json(own, _End):
        _check(end)
    assert made is not None or not own.error, "an error was raised"
    return made  # type: ignore[return-value]  # no error: it was made


def _tried(make: Callable[[], _Made]) -> tuple[_Made | None, _End]:
    try:
        return make(), _End()
    except SpindleError as error:
        return None, _End(error=type(error).__name__, problems=error.problems)


def _check(end: _End) -> None:
    if end.error:
        raise _ERRORS[end.error](*end.problems)
