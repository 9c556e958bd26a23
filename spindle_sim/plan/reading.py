"""From the text of a plan document to a `Plan`: JSON, then version, then shape, then ranges.

Every stage reports all that it finds, each with the dotted path of the field.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spindle_sim.errors import InputError, PlanError, Problem, suggestion
from spindle_sim.plan.model import FORMAT_VERSION, Plan
from spindle_sim.plan.names import wrong_names

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["plan_schema", "read_plan"]

_MAX_PROBLEMS = 50
_MAX_VALUE_LENGTH = 60
_SECTIONS = ("metaops", "slices", "flows", "parameter_groups", "memory", "rounds")


def read_plan(text: str, source: str) -> Plan:
    """Give the plan in `text`.

    Raises:
        PlanError: with every problem of the first stage that found one.
    """
    raw = _decode(text, source)
    if {"operators", "provenance"} <= raw.keys():
        message = "is a profile, not a plan: give it to --profile"
        raise PlanError(Problem(source=source, message=message))
    _check_version(raw, source)
    try:
        plan = _adapter().validate_json(f"[{text}]", strict=True)[0]
    except ValidationError as error:
        problems = _shape_problems(error, raw, source)
        raise PlanError(*problems) from error
    _refuse_values(plan, source)
    return plan


def plan_schema() -> dict[str, Any]:
    """Give the JSON Schema of a plan document."""
    schema = _adapter().json_schema()
    definitions = schema["$defs"]
    plan = definitions.pop("Plan")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **plan,
        "title": f"Spindle plan, format {FORMAT_VERSION}",
        "$defs": definitions,
    }


@cache
def _adapter() -> TypeAdapter[tuple[Plan, ...]]:
    # A tuple, since pydantic hands a config down to plain dataclasses only from around them.
    return TypeAdapter(tuple[Plan, ...], config=ConfigDict(extra="forbid"))


def _decode(text: str, source: str) -> dict[str, Any]:
    if not text.strip():
        raise PlanError(Problem(source=source, message="is empty; a plan is one JSON object"))
    raw, problems = _load(text)
    if problems:
        raise PlanError(*(replace(problem, source=source) for problem in problems[:_MAX_PROBLEMS]))
    if not isinstance(raw, dict):
        message = f"is a JSON {type(raw).__name__}; a plan is one JSON object"
        raise PlanError(Problem(source=source, message=message))
    return raw


def _load(text: str) -> tuple[object, list[Problem]]:
    """Give what the JSON holds, and what is wrong with it as JSON."""
    problems: list[Problem] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            names = Counter(name for name, _ in items)
            problems.extend(
                Problem(path=name, message="is given twice in one object")
                for name, count in names.items()
                if count > 1
            )
        return found

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            message = f"holds {digits[:_MAX_VALUE_LENGTH]}; every number must be finite"
            problems.append(Problem(message=message))
        return value

    raw: object = None
    try:
        raw = json.loads(text, object_pairs_hook=pairs, parse_constant=number, parse_float=number)
    except json.JSONDecodeError as error:
        message = f"is no JSON (column {error.colno}): {error.msg}; is the file whole?"
        problems.append(Problem(line=error.lineno, message=message))
    except RecursionError:
        problems.append(Problem(message="is nested far deeper than any plan"))
    except ValueError as error:  # an integer of thousands of digits
        problems.append(Problem(message=f"is no plan: {error}"))
    return raw, problems


def _check_version(raw: dict[str, Any], source: str) -> None:
    if "format_version" not in raw:
        known = ", ".join(item.name for item in fields(Plan)[:6])
        message = f"is missing: is this a plan? One begins with the fields {known}, ..."
        raise PlanError(Problem(source=source, path="format_version", message=message))
    found = raw["format_version"]
    parts = found.split(".") if isinstance(found, str) else []
    if len(parts) != len(FORMAT_VERSION.split(".")) or not all(
        part.isascii() and part.isdigit() and len(part) < 10  # noqa: PLR2004
        for part in parts
    ):
        message = f'{_shown(found)} is no version; this program reads "{FORMAT_VERSION}"'
        raise PlanError(Problem(source=source, path="format_version", message=message))
    major, minor = (int(part) for part in FORMAT_VERSION.split("."))
    if int(parts[0]) != major:
        message = (
            f"{found} is another major version: this program reads {major}.0 to {FORMAT_VERSION};"
            " make the plan again with `spindle plan`, or use the spindle-sim that wrote it"
        )
        raise PlanError(Problem(source=source, path="format_version", message=message))
    if int(parts[1]) > minor:
        message = (
            f"{found} was written by a newer spindle-sim: this one reads {major}.0 to"
            f" {FORMAT_VERSION}; update spindle-sim, or make the plan again with `spindle plan`"
        )
        raise PlanError(Problem(source=source, path="format_version", message=message))


def _shape_problems(error: ValidationError, raw: object, source: str) -> list[Problem]:
    found = error.errors(include_url=False)
    problems = [
        problem for item in found[:_MAX_PROBLEMS] for problem in _problems(item, raw, source)
    ]
    if len(found) > _MAX_PROBLEMS:
        message = f"and {len(found) - _MAX_PROBLEMS} more wrong fields"
        problems.append(Problem(source=source, message=message))
    return problems


def _problems(item: "ErrorDetails", raw: object, source: str) -> list[Problem]:
    path = _dotted(item["loc"][1:], raw, missing=item["type"] == "missing")
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):  # the checks of workload and cluster know their own paths
        return [
            replace(
                problem,
                source=source,
                path=".".join(part for part in (path, problem.path) if part),
            )
            for problem in cause.problems
        ]
    message = _message(
        item["type"], item["msg"], item["input"], "".join(map(str, item["loc"][-1:]))
    )
    return [Problem(source=source, path=path, message=message)]


def _dotted(location: tuple[int | str, ...], raw: object, *, missing: bool) -> str:
    """Give "workload.modules[0].name"; names of union members, which aren't keys, are left out."""
    path, here = "", raw
    for position, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
            here = here[part] if isinstance(here, list) and part < len(here) else None
        elif isinstance(here, dict) and part in here:
            path += f".{part}"
            here = here[part]
        elif missing and position == len(location) - 1:
            path += f".{part}"
    return path.removeprefix(".")


def _message(kind: str, text: str, value: object, name: str) -> str:
    if kind == "missing":
        return "is missing"
    if kind == "unexpected_keyword_argument":
        near = suggestion(name, _field_names())
        hint = f"; {near}" if near.startswith("did you") else f" (its value is {_shown(value)})"
        return f"is no field here{hint}"
    return f"{text[:1].lower()}{text[1:]}, not {_shown(value)}"


@cache
def _field_names() -> frozenset[str]:
    definitions = _adapter().json_schema()["$defs"].values()
    return frozenset(name for item in definitions for name in item.get("properties", {}))


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."


def _refuse_values(plan: Plan, source: str) -> None:
    problems = [
        Problem(source=source, path=path, message=f"must not be negative, not {value}")
        for path, value in _negatives(plan)
    ]
    problems += [
        Problem(source=source, path=path, message=mistake) for path, mistake in wrong_names(plan)
    ]
    if problems:
        raise PlanError(*problems[:_MAX_PROBLEMS])


def _negatives(plan: Plan) -> Iterator[tuple[str, float]]:
    """Give path and value of every negative number outside workload and cluster."""
    for name in ("optimum_s", "seed"):
        if getattr(plan, name) < 0:
            yield name, getattr(plan, name)
    for section in _SECTIONS:
        items = getattr(plan, section)
        kind: Any = type(items[0]) if items else None
        names = _number_fields(kind) if items else ()
        for index, item in enumerate(items):
            for name in names:
                if getattr(item, name) < 0:
                    yield f"{section}[{index}].{name}", getattr(item, name)


@cache
def _number_fields(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.type in (int, float))
