"""A timeline as one JSON document, for tools that want the spans themselves."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spindle_sim.errors import InputError, Problem
from spindle_sim.plan import Plan
from spindle_sim.timeline import Span, Timeline

__all__ = ["load_timeline", "timeline_schema", "timeline_to_json"]

_MAX_PROBLEMS = 20


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


def load_timeline(path: Path | str, plan: Plan) -> Timeline:
    """Read the timeline of an iteration of a plan from a file.

    Raises:
        InputError: the file can't be read, is no timeline, or one of another plan; with the
            problems found.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "isn't UTF-8 text"
        message = f"can't be read: {reason.lower()}; give what `spindle run --timeline` wrote"
        raise InputError(Problem(source=source, message=message)) from error
    try:
        timeline = _adapter().validate_json(f"[{text}]")[0]
    except ValidationError as error:
        raise InputError(*_shape_problems(error, source)) from error
    problems = [
        Problem(source=source, path=where, message=message)
        for where, message in _mismatches(timeline, plan)
    ]
    if len(problems) > _MAX_PROBLEMS:
        more = Problem(source=source, message=f"and {len(problems) - _MAX_PROBLEMS} more mistakes")
        problems = [*problems[:_MAX_PROBLEMS], more]
    if problems:
        raise InputError(*problems)
    return timeline


def _shape_problems(error: ValidationError, source: str) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        message = f"is no JSON: {details[0]['ctx']['error']}; is the file whole?"
        yield Problem(source=source, message=message)
        return
    for item in details[:_MAX_PROBLEMS]:
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"][1:]]
        message = f"{item['msg'].lower()}; a timeline is what `spindle run --timeline` writes"
        yield Problem(source=source, path="".join(parts).removeprefix("."), message=message)
    if len(details) > _MAX_PROBLEMS:
        message = f"and {len(details) - _MAX_PROBLEMS} more wrong fields"
        yield Problem(source=source, message=message)


def _mismatches(timeline: Timeline, plan: Plan) -> Iterator[tuple[str, str]]:
    """Give where a timeline can't be one of the plan, and why."""
    wanted = plan.cluster.num_devices
    if timeline.num_devices != wanted:
        yield "num_devices", f"is {timeline.num_devices}, but the plan is for {wanted}"
        return
    devices = {item.id: frozenset(item.devices) for item in plan.slices}
    for number, span in enumerate(timeline.spans):
        message = _wrong(span, devices, wanted)
        if message:
            yield f"spans[{number}]", message


def _wrong(span: Span, devices: dict[str, frozenset[int]], num_devices: int) -> str:
    if not 0 <= span.device < num_devices:
        return f"is of device {span.device}; the plan has 0 to {num_devices - 1}"
    times_s = span.start_s, span.end_s, span.wait_s
    if not all(map(math.isfinite, times_s)) or not 0 <= span.start_s <= span.end_s:
        return f"goes from {span.start_s} s to {span.end_s} s; expected 0 <= start_s <= end_s"
    if not 0 <= span.wait_s <= span.duration_s + 1e-9:  # rounding
        return f"waits for {span.wait_s} s of {span.duration_s} s"
    if span.slice and span.slice not in devices:
        return f"is of slice {span.slice!r:.60}, which the plan hasn't: is it another plan's?"
    if span.slice and span.device not in devices[span.slice]:
        return f"has slice {span.slice!r:.60} on device {span.device}; the plan has it on others"
    return ""


@cache
def _adapter() -> TypeAdapter[tuple[Timeline, ...]]:
    # A tuple, since pydantic hands a config down to plain dataclasses only from around them.
    return TypeAdapter(tuple[Timeline, ...], config=ConfigDict(extra="forbid"))


def _plain(entry: Any) -> dict[str, object]:
    document = {item.name: getattr(entry, item.name) for item in fields(entry)}
    if not document.get("micro_batch"):
        document.pop("micro_batch", None)  # only rounds of several have numbers to tell
    return document
