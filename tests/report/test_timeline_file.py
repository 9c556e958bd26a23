"""A timeline's document holds all of it, and keeps its published schema."""

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import TypeAdapter

from spindle_sim.report import timeline_schema, timeline_to_json
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Timeline
from tests.pipelines import pipelined_plan
from tests.stated_plans import two_task_plan

SCHEMA = Path(__file__).parent.parent.parent / "schemas" / "timeline.schema.json"


def test_the_document_holds_the_whole_timeline() -> None:
    timeline = simulate(two_task_plan())
    text = timeline_to_json(timeline)
    assert TypeAdapter(Timeline).validate_json(text) == timeline
    assert text == timeline_to_json(simulate(two_task_plan()))
    pipelined = simulate(pipelined_plan(ranks=2))
    assert TypeAdapter(Timeline).validate_json(timeline_to_json(pipelined)) == pipelined
    empty = Timeline(backend="none", num_devices=1, spans=())
    assert TypeAdapter(Timeline).validate_json(timeline_to_json(empty)) == empty


def test_the_published_schema_is_that_of_the_code_and_accepts_a_timeline(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--update-golden"):
        SCHEMA.write_text(json.dumps(timeline_schema(), indent=2) + "\n", encoding="utf-8")
    published = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert published == timeline_schema()
    validator = jsonschema.Draft202012Validator(published)
    document = json.loads(timeline_to_json(simulate(two_task_plan())))
    assert not list(validator.iter_errors(document))
    document["spans"][0]["kind"] = "nap"
    assert list(validator.iter_errors(document))
