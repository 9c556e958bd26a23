"""`spindle explain`: the critical path of a plan file, and what would help."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spindle_sim import save_plan
from spindle_sim.cli.application import application
from spindle_sim.errors import InputError, PlanError, UsageError
from spindle_sim.report import load_timeline, timeline_to_json
from spindle_sim.simulator import simulate
from tests.pipelines import pipelined_plan
from tests.stated_plans import stated, two_task_plan


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application(), ["explain", *arguments])


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(two_task_plan(), path)
    return path


@pytest.fixture
def timeline_file(tmp_path: Path) -> Path:
    path = tmp_path / "timeline.json"
    path.write_text(timeline_to_json(simulate(two_task_plan())))
    return path


def test_the_document_is_this_one(plan_file: Path, golden: Callable[[str, str], None]) -> None:
    done = run(str(plan_file), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["provenance"].pop("tool").startswith("spindle-sim ")
    golden("explain.json", json.dumps(document, indent=2) + "\n")


def test_the_document_adds_up(plan_file: Path) -> None:
    document = json.loads(run(str(plan_file), "--json").stdout)
    steps = document["steps"]
    assert steps[0]["start_s"] == 0.0
    assert steps[-1]["end_s"] == document["iteration_s"] == document["simulated_s"]
    assert all(a["end_s"] == b["start_s"] for a, b in itertools.pairwise(steps))
    for name in ("kinds", "tasks", "metaops", "devices"):
        assert sum(row["seconds"] for row in document[name]) == pytest.approx(
            document["iteration_s"]
        )
        assert sum(row["share"] for row in document[name]) == pytest.approx(1.0)
    for change in document["changes"]:
        assert change["saved_s"] == document["simulated_s"] - change["simulated_s"]


def test_the_tables_say_where_the_time_goes_and_what_would_help(plan_file: Path) -> None:
    done = run(str(plan_file))
    assert done.exit_code == 0, done.output
    for text in (
        "Critical path of an iteration",
        "Where it goes",
        "By task",
        "By MetaOp",
        "By device",
        "The way it takes",
        "What if it took 10 % less time?",
        "computing t/a/x",
        "all computing",
    ):
        assert text in done.stdout


def test_how_much_faster_is_asked_for(plan_file: Path) -> None:
    by = {}
    for percent in ("5", "50"):
        document = json.loads(run(str(plan_file), "--faster", percent, "--json").stdout)
        assert document["faster"] == float(percent) / 100
        (change,) = (one for one in document["changes"] if one["change"] == "compute")
        by[percent] = change["saved_s"]
    assert by["50"] == pytest.approx(10 * by["5"], rel=0.01)


def test_synchronization_beside_the_backward_is_that_of_simulate(plan_file: Path) -> None:
    document = json.loads(run(str(plan_file), "--overlap-sync", "--json").stdout)
    expected = simulate(two_task_plan(), overlap_sync=True).iteration_s
    assert document["iteration_s"] == expected
    assert document["provenance"]["overlap_sync"] is True
    assert "overlap_sync" not in {change["change"] for change in document["changes"]}


def test_an_executed_iteration_is_explained_from_its_timeline(
    plan_file: Path, timeline_file: Path
) -> None:
    document = json.loads(timeline_file.read_text())
    document["backend"] = "torch-gloo"
    document["spans"] = [
        {**span, "start_s": 2 * span["start_s"], "end_s": 2 * span["end_s"]}
        for span in document["spans"]
    ]
    timeline_file.write_text(json.dumps(document))
    told = json.loads(run(str(plan_file), "--timeline", str(timeline_file), "--json").stdout)
    assert told["backend"] == "torch-gloo"
    assert told["iteration_s"] == 2 * simulate(two_task_plan()).iteration_s
    assert {change["change"] for change in told["changes"]} == {"metaop", "compute"}
    done = run(str(plan_file), "--timeline", str(timeline_file))
    assert "were executed" in done.stdout


def test_a_long_path_is_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = pipelined_plan(ranks=4, micro_batches=16)
    save_plan(stated(plan), path)
    done = run(str(path))
    assert done.exit_code == 0, done.output
    assert "t/a/x forward+backward: compute" in done.stdout


@pytest.mark.parametrize("percent", ["0", "-1", "100", "nan", "much"])
def test_a_part_cant_take_no_time(plan_file: Path, percent: str) -> None:
    done = CliRunner().invoke(application(), ["explain", str(plan_file), "--faster", percent])
    assert isinstance(done.exception, UsageError)
    assert f"--faster {percent}" in str(done.exception)


def test_a_missing_plan_or_timeline_is_named(plan_file: Path) -> None:
    assert isinstance(run("/no/plan.json").exception, PlanError)
    done = run(str(plan_file), "--timeline", "/no/timeline.json")
    assert isinstance(done.exception, InputError)
    assert "/no/timeline.json: can't be read" in str(done.exception)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_devices": 3}, "num_devices: is 3, but the plan is for 8"),
        ({"spans": [{"device": 0}]}, "spans[0].start_s: field required"),
        ({"extra": 1}, "extra: unexpected keyword argument"),
    ],
)
def test_a_timeline_of_another_shape_is_refused(
    timeline_file: Path, change: dict[str, object], message: str
) -> None:
    document = {**json.loads(timeline_file.read_text()), **change}
    timeline_file.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        load_timeline(timeline_file, two_task_plan())
    assert message in str(caught.value)
    assert str(timeline_file) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", 99, "is of device 99; the plan has 0 to 7"),
        ("start_s", -1.0, "expected 0 <= start_s <= end_s"),
        ("end_s", -1.0, "expected 0 <= start_s <= end_s"),
        ("wait_s", 1e9, "waits for 1000000000.0 s"),
        ("slice", "zzz", "is of slice 'zzz', which the plan hasn't"),
        ("device", 7, "the plan has it on others"),
    ],
)
def test_a_span_that_cant_be_of_the_plan_is_named(
    timeline_file: Path, field: str, value: object, message: str
) -> None:
    document = json.loads(timeline_file.read_text())
    document["spans"][0][field] = value
    timeline_file.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        load_timeline(timeline_file, two_task_plan())
    assert "spans[0]: " in str(caught.value)
    assert message in str(caught.value)


def test_a_timeline_file_is_read_as_it_was_written(timeline_file: Path) -> None:
    assert load_timeline(timeline_file, two_task_plan()) == simulate(two_task_plan())
    timeline_file.write_text(timeline_file.read_text()[:-100])
    with pytest.raises(InputError, match="is no JSON"):
        load_timeline(timeline_file, two_task_plan())
