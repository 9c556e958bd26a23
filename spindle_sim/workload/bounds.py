"""Integers with a lower bound, and names, as the schema and the checks of a file know them.

An object checks itself when it is made, whoever makes it; these let a reader name a wrong field
even where another one keeps the object from being made.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from spindle_sim.errors import InputError
from spindle_sim.names import name_mistake

__all__ = ["Count", "Name", "Quantity", "Size"]


def _named(name: str) -> str:
    if mistake := name_mistake(name, part=True):
        raise InputError(mistake)
    return name


Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Name = Annotated[str, AfterValidator(_named)]
Quantity = Annotated[float, Field(ge=0, allow_inf_nan=False)]
