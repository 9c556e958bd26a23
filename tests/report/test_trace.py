"""The Chrome trace: what Perfetto needs of it, and that it says what the timeline says."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import UsageError
from spindle_sim.plan import Plan
from spindle_sim.report import trace_events, write_trace
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, MemorySample, Phase, Span, Timeline
from tests.pipelines import pipelined_plan
from tests.random_plans import plans
from tests.stated_plans import two_round_plan, two_task_plan

Event = dict[str, Any]


def complete(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def assert_no_overlap(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in complete(events):
        tracks[event["pid"], event["tid"]].append(event)
    for own in tracks.values():
        own.sort(key=lambda event: (event["ts"], event["dur"]))
        for before, after in pairwise(own):
            # In nanoseconds, which are whole: the microseconds' fractions aren't.
            assert round(1000 * (before["ts"] + before["dur"])) <= round(1000 * after["ts"])


def test_every_span_is_an_event_in_microseconds() -> None:
    plan = two_task_plan()
    timeline = simulate(plan)
    events = complete(list(trace_events(plan, timeline)))
    found = sorted((e["pid"], round(e["ts"], 3), round(e["dur"], 3), e["cat"]) for e in events)
    wanted = sorted(
        (
            span.device,
            round(span.start_s * 1e9) / 1000,
            round((round(span.end_s * 1e9) - round(span.start_s * 1e9)) / 1000, 3),
            f"{span.kind},{span.phase}",
        )
        for span in timeline.spans
    )
    assert found == wanted
    first = next(e for e in events if e["args"].get("slice") == "s3")
    assert first["ts"] >= 2e6  # s3 starts after two slices of one second each
    assert first["args"]["metaop"] == "t/b/x"
    assert first["args"]["stage"] == 2
    assert first["args"]["operators"] == "0 to 3"
    assert any(e["args"].get("bytes") for e in events)


def test_operations_of_cut_rounds_say_their_micro_batch() -> None:
    plan = pipelined_plan(ranks=2, micro_batches=2)
    events = complete(list(trace_events(plan, simulate(plan))))
    numbers = [event["args"].get("micro_batch") for event in events if event["pid"] == 0]
    # Forward, forward, backward, backward and the step; two sends and two receives.
    assert sorted(number for number in numbers if number is not None) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert numbers.count(None) == 1


def test_one_operator_is_no_range() -> None:
    plan = two_round_plan()
    events = list(trace_events(plan, simulate(plan)))
    operators = {e["args"]["operators"] for e in complete(events) if "operators" in e["args"]}
    assert operators == {"0"}


@given(plans())
@settings(max_examples=40)
def test_no_two_events_of_a_track_overlap(plan: Plan) -> None:
    assert_no_overlap(list(trace_events(plan, simulate(plan))))


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.floats(0, 1e-6), st.floats(0, 1e-6)),
        max_size=40,
    )
)
def test_spans_that_overlap_on_a_stream_go_to_further_tracks(
    spans: list[tuple[int, int, float, float]],
) -> None:
    timeline = Timeline(
        backend="made up",
        num_devices=2,
        spans=tuple(
            Span(
                device=device,
                stream=stream,
                start_s=start_s,
                end_s=start_s + duration_s,
                kind=Kind.SEND,
                phase=Phase.FORWARD,
            )
            for device, stream, start_s, duration_s in spans
        ),
    )
    events = list(trace_events(two_task_plan(), timeline))
    assert len(complete(events)) == len(spans)
    assert_no_overlap(events)


def test_processes_and_tracks_have_names_and_memory_is_a_counter() -> None:
    plan = two_task_plan()
    timeline = Timeline(
        backend="made up",
        num_devices=8,
        spans=simulate(plan).spans,
        memory=(MemorySample(device=3, time_s=1.5, bytes=2.0**30),),
    )
    events: list[Event] = list(trace_events(plan, timeline))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[3] == "GPU 3 (node 0)"
    assert names[4] == "GPU 4 (node 1)"
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in complete(events)} <= named
    (counter,) = [event for event in events if event["ph"] == "C"]
    assert (counter["pid"], counter["ts"], counter["args"]) == (3, 1.5e6, {"bytes": 2.0**30})


def test_the_file_is_json_or_gzip_and_the_same_each_time(tmp_path: Path) -> None:
    plan = two_task_plan()
    timeline = simulate(plan)
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_trace(tmp_path / name, plan, timeline)
    text = (tmp_path / "a.json").read_bytes()
    assert text == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == text
    document = json.loads(text)
    assert document["traceEvents"] == list(trace_events(plan, timeline))
    assert document["otherData"]["strategy"] == "hand-made"
    with pytest.raises(UsageError, match="can't be written"):
        write_trace(tmp_path / "none" / "a.json", plan, timeline)
