"""Where in a plan document a rule of workload or cluster is broken.

Their dataclasses check themselves and say what is wrong, but not at which path.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InputError, Problem
from spindle_sim.workload import Workload

__all__ = ["located_rule_problems"]


def located_rule_problems(raw: dict[str, Any], source: str) -> list[Problem]:
    """Give what the dataclasses of workload and cluster refuse, innermost first, with its path."""
    return [
        Problem(source=source, path=path, message=message)
        for hint, key in ((Workload, "workload"), (Cluster, "cluster"))
        for path, message in _broken(hint, raw.get(key), key)
    ]


def _broken(hint: Any, raw: object, path: str) -> list[tuple[str, str]]:
    found = [
        item
        for child_hint, child, child_path in _children(hint, raw, path)
        for item in _broken(child_hint, child, child_path)
    ]
    if found or not is_dataclass(hint):
        return found  # what holds a broken part needn't be told again
    try:
        TypeAdapter(hint).validate_python(raw)
    except InputError as error:
        return [(path, problem.message) for problem in error.problems]
    except ValidationError:
        return []
    return []


def _children(hint: Any, raw: object, path: str) -> Iterator[tuple[Any, object, str]]:
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(raw, dict):
        for name, child in get_type_hints(hint).items():
            if name in raw:
                yield child, raw[name], f"{path}.{name}"
    elif get_origin(hint) is tuple and isinstance(raw, list):
        for index, item in enumerate(raw):
            yield get_args(hint)[0], item, f"{path}[{index}]"
    elif isinstance(hint, UnionType) and isinstance(raw, dict):
        for member in get_args(hint):
            kinds = [item.default for item in fields(member) if item.name == "kind"]
            if raw.get("kind") in kinds:
                yield member, raw, path
