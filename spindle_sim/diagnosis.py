"""Plain data checked against a dataclass: every mistake with its line, path, value and a hint."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pydantic
from pydantic import TypeAdapter

from spindle_sim.errors import InputError, Problem, suggestion
from spindle_sim.yamlfile import FieldPath, YamlFile

__all__ = ["refuse", "validate"]

MAX_PROBLEMS = 50
_Schema = Mapping[str, Any]
_Checked = TypeVar("_Checked")


def validate(
    adapter: TypeAdapter[_Checked],
    file: YamlFile,
    *,
    schema: _Schema,
    problems: Iterable[Problem] = (),
) -> _Checked:
    """Give the object that the file's data describes.

    `schema` is the JSON Schema of the data: it knows which names a field may have. `problems` are
    those that the caller found; of two at the same path, the caller's is kept.

    Raises:
        InputError: with all problems, sorted by line.
    """
    found = [*_misplaced_booleans(file, schema)]
    checked: _Checked | None = None
    try:
        checked = adapter.validate_python(file.data)
    except pydantic.ValidationError as error:
        for details in error.errors(include_url=False):
            found.extend(_problems(file, schema, details))
    given = [*file.problems, *problems]
    paths = {problem.path for problem in given}
    refuse([*given, *(problem for problem in found if problem.path not in paths)])
    assert checked is not None, "an object that failed its checks was reported above"
    return checked


def refuse(problems: Iterable[Problem]) -> None:
    """Raise all problems together, sorted by line and each once; do nothing where there are none.

    Raises:
        InputError: there is at least one.
    """
    unique = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line or 0, problem.path))
    if len(unique) > MAX_PROBLEMS:
        more = Problem(
            source=unique[0].source, message=f"and {len(unique) - MAX_PROBLEMS} more mistakes"
        )
        unique = [*unique[:MAX_PROBLEMS], more]
    if unique:
        raise InputError(*unique)


def _problems(file: YamlFile, schema: _Schema, details: Any) -> Iterable[Problem]:
    path, node = _locate(schema, schema, details["loc"])
    error = details.get("ctx", {}).get("error")
    if isinstance(error, InputError):
        for problem in error.problems:
            yield _nested(file, path, problem)
        return
    yield file.problem(path, _message(details, path, node, schema))


def _nested(file: YamlFile, path: FieldPath, problem: Problem) -> Problem:
    """Put a problem that an object found within itself where the object stands in the file."""
    parts = problem.path.replace("]", "").replace("[", ".").split(".")
    inner = (int(part) if part.isdecimal() else part for part in parts if part)
    return file.problem((*path, *inner), problem.message)


def _message(details: Any, path: FieldPath, node: _Schema, schema: _Schema) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "missing":
        return "is required, and missing"
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        _, parent = _locate(schema, schema, details["loc"][:-1])
        return f"unknown field {path[-1]!r}; {suggestion(str(path[-1]), _fields(parent, schema))}"
    if kind == "union_tag_not_found":
        return f"needs a kind; known are: {', '.join(_tags(node))}"
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        return f"unknown kind {tag!r}; {suggestion(tag, _tags(node))}"
    if kind == "literal_error":
        allowed = str(context["expected"])
        hint = suggestion(str(value), allowed.replace("'", "").replace(" or ", ", ").split(", "))
        return f"found {_shown(value)}, expected {allowed}; {hint}"
    if kind in {"dataclass_type", "model_attributes_type"}:
        return f"expected fields such as 'name: ...', found {_shown(value)}"
    if kind == "tuple_type":
        return f"expected a list, found {_shown(value)}"
    if value is None:
        return "has no value"
    return f"{details['msg'].removeprefix('Value error, ')}; found {_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "fields"
    return f"{value!r:.60}"


def _misplaced_booleans(file: YamlFile, schema: _Schema) -> Iterable[Problem]:
    """Find true and false where a number belongs: Python would read them as 1 and 0."""
    pending: list[tuple[FieldPath, object, _Schema]] = [((), file.data, schema)]
    while pending:
        path, value, described = pending.pop()
        node = _resolved(described, schema)
        if isinstance(value, bool):
            kinds = {_resolved(part, schema).get("type") for part in _alternatives(node)}
            if kinds & {"integer", "number"} and "boolean" not in kinds:
                found = str(value).lower()
                yield file.problem(path, f"expected a number, found {found}")
        elif isinstance(value, dict):
            branch = _branch(node, schema, value)
            fields = branch.get("properties", {})
            pending += [((*path, key), value[key], fields[key]) for key in value if key in fields]
        elif isinstance(value, list) and "items" in node:
            pending += [((*path, i), item, node["items"]) for i, item in enumerate(value)]


def _locate(schema: _Schema, root: _Schema, location: Iterable[Any]) -> tuple[FieldPath, _Schema]:
    """Give a field's path without the names of union members, and its schema ({} if unknown)."""
    node, path = _resolved(schema, root), ()  # type: tuple[_Schema, FieldPath]
    for part in location:
        mapping = node.get("discriminator", {}).get("mapping", {})
        if part in mapping:
            node = _resolved({"$ref": mapping[part]}, root)
            continue
        path = (*path, part)
        objects = (_resolved(option, root) for option in _alternatives(node))
        node = next((option for option in objects if {"items", "properties"} & set(option)), {})
        below = node.get("items", {}) if isinstance(part, int) else node.get("properties", {})
        node = _resolved(below if isinstance(part, int) else below.get(part, {}), root)
    return path, node


def _branch(node: _Schema, root: _Schema, value: Mapping[str, object]) -> _Schema:
    mapping = node.get("discriminator", {}).get("mapping", {})
    if mapping:
        kind = value.get("kind")
        return _resolved({"$ref": mapping.get(kind, "") if isinstance(kind, str) else ""}, root)
    options = (_resolved(option, root) for option in _alternatives(node))
    return next((option for option in options if "properties" in option), {})


def _resolved(node: _Schema, root: _Schema) -> _Schema:
    reference = node.get("$ref")
    if reference is None:
        return node
    resolved: _Schema = root["$defs"].get(reference.removeprefix("#/$defs/"), {})
    return resolved


def _alternatives(node: _Schema) -> list[_Schema]:
    options: list[_Schema] = node.get("anyOf") or [node]
    return options


def _fields(node: _Schema, root: _Schema) -> list[str]:
    options = (_resolved(option, root) for option in _alternatives(node))
    return [name for option in options for name in option.get("properties", {})]


def _tags(node: _Schema) -> list[str]:
    return sorted(node.get("discriminator", {}).get("mapping", {}))
