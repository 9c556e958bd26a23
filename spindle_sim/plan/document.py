"""The plan as one JSON document: written canonically (same plan, same bytes), read strictly.

Reading checks the version, then the shape of everything at once; whether the plan is a good one,
`spindle_sim.plan.validate_plan` says.
"""

import hashlib
import json
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from spindle_sim.cluster import Cluster
from spindle_sim.errors import PlanError, Problem
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.plan.model import Plan
from spindle_sim.plan.reading import read_plan
from spindle_sim.workload import Workload

__all__ = ["dump_plan", "input_hash", "load_plan", "parse_plan", "save_plan"]

_ONE_A_LINE = ("metaops", "slices", "flows", "parameter_groups", "memory", "rounds")


def dump_plan(plan: Plan) -> str:
    """Give the plan as JSON: the model's field order, one MetaOp, slice, flow, ... a line.

    Raises:
        PlanError: the plan holds a number that JSON can't (infinity, NaN).
    """
    document = _plain(plan)
    lines = []
    for key, value in document.items():
        if key in _ONE_A_LINE and value:
            body = ",\n".join(f"    {_compact(item, key)}" for item in value)
            lines.append(f'  "{key}": [\n{body}\n  ]')
        else:
            lines.append(f'  "{key}": {_compact(value, key)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_plan(text: str, source: str = "plan") -> Plan:
    """Give the plan that a JSON document holds; `source` names it in errors.

    Raises:
        PlanError: it is no JSON, has another version, or its shape is wrong; every wrong field is
            named.
    """
    return read_plan(text, source)


def load_plan(path: Path | str) -> Plan:
    """Give the plan of a file.

    Raises:
        PlanError: as `parse_plan`, or the file can't be read.
    """
    source = str(path)
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"can't be read: {reason.lower()}; give a plan that `spindle plan -o` wrote"
        raise PlanError(Problem(source=source, message=message)) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"isn't UTF-8 text (byte {error.start}): a plan is a JSON file in UTF-8"
        raise PlanError(Problem(source=source, message=message)) from error
    return parse_plan(text, source)


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan to a file, whole or not at all.

    Raises:
        UsageError: the path can't be written.
    """
    write_atomically(path, dump_plan(plan).encode())


def input_hash(value: Workload | Cluster) -> str:
    """Give the SHA-256 of the canonical JSON (sorted keys, no spaces) of a plan's input."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _compact(value: object, key: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        message = "holds infinity or NaN, which JSON can't; a planner made a wrong plan"
        raise PlanError(Problem(path=key, message=message)) from error


def _plain(value: Any) -> Any:
    """Give dataclasses as dicts and tuples as lists, numbers as their field's type has them."""
    if is_dataclass(value):
        kind: Any = type(value)
        floats = _float_fields(kind)
        return {
            item.name: float(getattr(value, item.name))
            if item.name in floats  # 5 and 5.0 are equal plans and must be equal bytes
            else _plain(getattr(value, item.name))
            for item in fields(value)
        }
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    return value if isinstance(value, float) else int(value)  # int() also turns numpy's integers


@cache
def _float_fields(kind: Any) -> frozenset[str]:
    return frozenset(name for name, hint in get_type_hints(kind).items() if hint is float)
