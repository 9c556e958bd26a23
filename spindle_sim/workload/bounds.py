"""Integers with a lower bound, as the schema and the checks of a file know them.

An object checks itself when it is made, whoever makes it; these let a reader name a wrong field
even where another one keeps the object from being made.
"""

from typing import Annotated

from pydantic import Field

__all__ = ["Count", "Quantity", "Size"]

Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Quantity = Annotated[float, Field(ge=0, allow_inf_nan=False)]
