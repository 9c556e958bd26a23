"""`spindle curves`, `workloads`, `gpus`, `schema`, `init`."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

from spindle_sim import load_workload
from spindle_sim.cli.application import application
from spindle_sim.cli.options import STRATEGY_NAMES
from spindle_sim.cluster import GPUS
from spindle_sim.errors import UsageError
from spindle_sim.planner import STRATEGIES
from spindle_sim.workload import BUILTIN_WORKLOADS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application(), arguments)


def test_help_names_every_verb_and_every_strategy() -> None:
    listed = run("-h").stdout
    assert "..." not in listed.split("Commands:")[1], "a summary is too long for its line"
    assert set(STRATEGY_NAMES.split(", ")) == set(STRATEGIES)


def test_curves_gives_every_allocation_of_every_metaop() -> None:
    arguments = ["multitask-clip", "--tasks", "1", "--cluster", "a800:1x8"]
    document = json.loads(run("curves", *arguments, "--json").stdout)
    assert document["curves"]
    for curve in document["curves"]:
        devices = [point["devices"] for point in curve["points"]]
        assert devices == sorted(n for n in range(1, 9) if curve["batch"] % n == 0)
        assert all(point["forward_s"] > 0 for point in curve["points"])
    printed = run("curves", *arguments).stdout
    assert all(curve["metaop"] in printed for curve in document["curves"])


def test_curves_writes_a_page_that_needs_no_network_and_is_the_same_every_time(
    tmp_path: Path,
) -> None:
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        arguments = ["multitask-clip", "--tasks", "1", "--cluster", "a800:1x8"]
        assert run("curves", *arguments, "--report", str(page)).exit_code == 0
    text = pages[0].read_text(encoding="utf-8")
    assert r"vision\u002flayers" in text
    assert r"image-text\u003cbr\u003e1 device" in text
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)
    assert pages[1].read_text(encoding="utf-8") == text


def test_curves_shows_where_a_tensor_parallel_degree_is_impossible() -> None:
    arguments = ["multitask-clip", "--tasks", "1", "--cluster", "a800:1x8"]
    done = run("curves", *arguments, "--tensor-parallel", "3")
    assert done.exit_code == 0, done.output
    assert " - " in done.stdout


def test_workloads_lists_the_parameter_totals() -> None:
    rows = {row["name"]: row for row in json.loads(run("workloads", "--json").stdout)["workloads"]}
    assert list(rows) == [make().name for make in BUILTIN_WORKLOADS.values()]
    assert rows["multitask-clip"]["parameters"] == 1_200_781_057
    assert "1,200,781,057 parameters" in run("workloads").stdout


def test_gpus_names_the_source_of_every_entry() -> None:
    rows = json.loads(run("gpus", "--json").stdout)["gpus"]
    assert [row["key"] for row in rows] == list(GPUS)
    printed = run("gpus").stdout
    for row in rows:
        assert row["source"]
        assert row["source"] in printed


@pytest.mark.parametrize(
    "name", ["workload", "cluster", "plan", "profile", "timeline", "reproduction"]
)
def test_a_schema_is_a_valid_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(run("schema", name).stdout))


def test_init_writes_a_workload_that_its_schema_and_its_reader_take(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    assert run("init", str(path)).exit_code == 0
    assert load_workload(path).name == "my-workload"
    schema = json.loads(run("schema", "workload").stdout)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)


def test_init_wants_a_name() -> None:
    done = run("init", "")
    assert isinstance(done.exception, UsageError)
    assert "expected the name of a file" in str(done.exception)


def test_init_leaves_a_file_alone_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("mine")
    assert isinstance(run("init", str(path)).exception, UsageError)
    assert path.read_text() == "mine"
    assert run("init", str(path), "--force").exit_code == 0
    assert load_workload(path).tasks
