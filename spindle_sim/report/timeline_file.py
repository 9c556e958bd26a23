"""A timeline as one JSON document, for tools that want the spans themselves."""

import json
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from spindle_sim.timeline import Timeline

__all__ = ["timeline_schema", "timeline_to_json"]


def timeline_to_json(timeline: Timeline) -> str:
    """Give the timeline as JSON, a span and a memory sample a line; same timeline, same text."""
    lines = []
    for item in fields(timeline):
        value = getattr(timeline, item.name)
        if isinstance(value, tuple):
            body = ",\n".join(f"    {json.dumps(_plain(entry))}" for entry in value)
            lines.append(f'  "{item.name}": [\n{body}\n  ]' if body else f'  "{item.name}": []')
        else:
            lines.append(f'  "{item.name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def timeline_schema() -> dict[str, Any]:
    """Give the JSON Schema of that document."""
    schema = _adapter().json_schema()
    definitions = schema["$defs"]
    timeline = definitions.pop("Timeline")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **timeline,
        "title": "Spindle timeline",
        "$defs": definitions,
    }


@cache
def _adapter() -> TypeAdapter[tuple[Timeline, ...]]:
    # A tuple, since pydantic hands a config down to plain dataclasses only from around them.
    return TypeAdapter(tuple[Timeline, ...], config=ConfigDict(extra="forbid"))


def _plain(entry: Any) -> dict[str, object]:
    document = {item.name: getattr(entry, item.name) for item in fields(entry)}
    if not document.get("micro_batch"):
        document.pop("micro_batch", None)  # only rounds of several have numbers to tell
    return document
