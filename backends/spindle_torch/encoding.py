"""Values of our own as JSON and back, between processes; no torch.

Reading checks every field and runs nothing, unlike a pickle: what comes out of a file or over a
network is data, whoever wrote it.
"""

import json
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

__all__ = ["from_json", "to_json"]

_Value = TypeVar("_Value")


def to_json(value: object) -> bytes:
    """Give dataclasses, containers, numbers (infinity and NaN, too), paths and texts as JSON."""
    return json.dumps(value, default=_plain).encode()


def from_json(content: bytes, kind: type[_Value]) -> _Value:
    """Give the value back, which is of this type; floats are those that were written.

    Raises:
        ValueError: it isn't; pydantic's, with every wrong field.
    """
    adapter: TypeAdapter[_Value] = _adapter(cast("Any", kind))
    return adapter.validate_json(content, strict=True)


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    assert isinstance(value, Path), f"{type(value).__name__} has no form in JSON"
    return str(value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
