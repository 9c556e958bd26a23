"""The names in a plan, outside its workload and cluster, that nobody could read or type."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from spindle_sim.names import name_mistake
from spindle_sim.plan.model import Plan

__all__ = ["wrong_names"]

_SECTIONS = ("metaops", "slices", "flows")


def wrong_names(plan: Plan) -> Iterator[tuple[str, str]]:
    """Give the path of every wrong name and what is wrong with it; `profile` may be empty."""
    for path, name in _names(plan):
        if (name or path != "profile") and (mistake := name_mistake(name)):
            yield path, mistake


def _names(plan: Plan) -> Iterator[tuple[str, str]]:
    for field_name in ("strategy", "profile", "tool"):
        yield field_name, getattr(plan, field_name)
    for section in _SECTIONS:
        for index, item in enumerate(getattr(plan, section)):
            kind: Any = type(item)
            for field_name in _name_fields(kind):
                yield f"{section}[{index}].{field_name}", getattr(item, field_name)
    for index, group in enumerate(plan.parameter_groups):
        for position, part in enumerate(group.parameter_sets):
            path = f"parameter_groups[{index}].parameter_sets[{position}].parameter_set"
            yield path, part.parameter_set


@cache
def _name_fields(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.type is str)
