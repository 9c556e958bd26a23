"""A user's workload: one YAML file, checked whole, with every mistake named.

The file has the fields of `Workload`. Two things may be written shorter: a flow as "a -> b", and a
use without a name, which then has its module's.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spindle_sim.diagnosis import validate
from spindle_sim.errors import Problem, suggestion
from spindle_sim.workload.model import Workload
from spindle_sim.yamlfile import YamlFile, read_yaml, refuse_other_kind

__all__ = ["load_workload", "workload_schema"]

_FLOW = re.compile(r"\s*(?P<source>\S.*?)\s*->\s*(?P<target>\S.*?)\s*")


def load_workload(path: str | Path) -> Workload:
    """Read a workload from a YAML file.

    Raises:
        InputError: the file can't be read, or isn't a workload; every mistake in it is named.
    """
    file = read_yaml(path)
    refuse_other_kind(
        file,
        own={"modules", "tasks"},
        other={"gpu", "nodes", "devices_per_node"},
        message="describes a cluster, not a workload: give it to --cluster",
    )
    refuse_other_kind(
        file,
        own={"modules", "tasks"},
        other={"operators", "provenance"},
        message="is a profile, not a workload: give it to --profile",
    )
    file, problems = _expanded(file)
    problems += [*_dangling_names(file), *_repeated_names(file)]
    return validate(_adapter(), file, schema=workload_schema(), problems=problems)


def workload_schema() -> dict[str, Any]:
    """Give the JSON Schema of a workload file, for editors and other checkers."""
    schema = _adapter().json_schema()
    definitions = schema["$defs"]
    for definition in definitions.values():
        if "kind" in definition.get("properties", {}):
            definition["required"] = ["kind", *definition.get("required", [])]
    definitions["ModuleUse"]["required"].remove("name")
    flow = definitions.pop("DataFlow")
    definitions["DataFlow"] = {
        "anyOf": [
            {
                "type": "string",
                "pattern": "^\\s*\\S.*->\\s*\\S.*$",
                "description": "source -> target",
            },
            flow,
        ]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "spindle-sim workload",
    }


@cache
def _adapter() -> TypeAdapter[Workload]:
    return TypeAdapter(Workload)


def _expanded(file: YamlFile) -> tuple[YamlFile, list[Problem]]:
    """Write out what may be written shorter; places in the file stay the same."""
    problems: list[Problem] = []
    data = dict(_mapping(file.data))
    tasks: list[object] = []
    for index, task in enumerate(_sequence(data.get("tasks"))):
        if not isinstance(task, dict):
            tasks.append(task)
            continue
        task = dict(task)
        if isinstance(task.get("uses"), list):
            task["uses"] = [_named(use) for use in task["uses"]]
        if isinstance(task.get("flows"), list):
            flows = []
            for position, flow in enumerate(task["flows"]):
                expanded = _flow(flow)
                if expanded is None:
                    path = ("tasks", index, "flows", position)
                    message = f"expected 'source -> target', found {flow!r:.60}"
                    problems.append(file.problem(path, message))
                    expanded = flow
                flows.append(expanded)
            task["flows"] = flows
        tasks.append(task)
    if isinstance(data.get("tasks"), list):
        data["tasks"] = tasks
    return replace(file, data=data), problems


def _named(use: object) -> object:
    if isinstance(use, dict) and "name" not in use and isinstance(use.get("module"), str):
        return {"name": use["module"], **use}
    return use


def _flow(flow: object) -> object:
    """Give the two ends of "a -> b"; None for another string; anything else as it is."""
    if not isinstance(flow, str):
        return flow
    match = _FLOW.fullmatch(flow)
    if match is None or "->" in match["target"]:
        return None
    return {"source": match["source"], "target": match["target"]}


def _dangling_names(file: YamlFile) -> list[Problem]:
    """Find names of modules and uses that don't exist, even where the rest can't be read yet."""
    problems: list[Problem] = []
    data = _mapping(file.data)
    modules = _names(data.get("modules"))
    for index, task in enumerate(_sequence(data.get("tasks"))):
        uses = _sequence(_mapping(task).get("uses"))
        names = _names(uses)
        for position, use in enumerate(uses):
            name = _mapping(use).get("module")
            if isinstance(name, str) and name not in modules:
                path = ("tasks", index, "uses", position, "module")
                message = f"no module {name!r}; {suggestion(name, modules)}"
                problems.append(file.problem(path, message))
        for position, flow in enumerate(_sequence(_mapping(task).get("flows"))):
            for end in ("source", "target"):
                name = _mapping(flow).get(end)
                if isinstance(name, str) and name not in names:
                    path = ("tasks", index, "flows", position, end)
                    message = f"{name!r} is none of the task's uses; {suggestion(name, names)}"
                    problems.append(file.problem(path, message))
    return problems


def _repeated_names(file: YamlFile) -> list[Problem]:
    """Find modules and tasks of one name, even where the rest can't be read yet."""
    problems: list[Problem] = []
    for field_name in ("modules", "tasks"):
        first: dict[str, int] = {}
        for index, item in enumerate(_sequence(_mapping(file.data).get(field_name))):
            name = _mapping(item).get("name")
            if isinstance(name, str) and first.setdefault(name, index) != index:
                message = f"{name!r} is given twice, first as {field_name}[{first[name]}]"
                problems.append(file.problem((field_name, index), message))
    return problems


def _names(items: object) -> set[str]:
    named = (_mapping(item).get("name") for item in _sequence(items))
    return {name for name in named if isinstance(name, str)}


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> list[object]:
    return value if isinstance(value, list) else []
