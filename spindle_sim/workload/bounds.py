"""Integers with bounds, and names, as the schema and the checks of a file know them.

An object checks itself when it is made, whoever makes it; these let a reader name a wrong field
even where another one keeps the object from being made.
"""

import math
from typing import Annotated

from pydantic import AfterValidator, Field

from spindle_sim.errors import InputError, Problem
from spindle_sim.names import name_mistake

__all__ = ["MAX_COUNT", "Count", "Name", "Quantity", "Size", "refuse_below"]

MAX_COUNT = 10**15  # of anything: far above any model, and products of a few still fit a float
_MAX_QUANTITY = 1e30


def _named(name: str) -> str:
    if mistake := name_mistake(name, part=True):
        raise InputError(mistake)
    return name


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, AfterValidator(_named)]
Quantity = Annotated[float, Field(ge=0, le=_MAX_QUANTITY, allow_inf_nan=False)]


def refuse_below(least: int, **figures: float | None) -> None:
    """Refuse figures that are below `least`, infinite or no numbers, all of them at once."""
    problems = [
        Problem(path=name, message=f"must be a number of at least {least}, not {figure}")
        for name, figure in figures.items()
        if figure is not None and not least <= figure < math.inf
    ]
    if problems:
        raise InputError(*problems)
