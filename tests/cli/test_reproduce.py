"""`spindle reproduce`: the real command on small clusters."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from spindle_sim.errors import UsageError
from spindle_sim.reproduce import ALL_PARTS, EXPLAIN, PARTS, Options, Reproduction
from spindle_sim.reproduce import reproduce as run
from spindle_sim.reproduce.document import document_schema
from spindle_sim.reproduce.experiments import CHANGES
from spindle_sim.reproduce.statements import STATEMENTS

STUDY = ["fig4", "fig9", "fig15", "--gpus", "16", "--batch-scale", "0.25"]


def reproduce(*arguments: str) -> str:
    done = CliRunner().invoke(application(), ["reproduce", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce") / "page.html"


@pytest.fixture(scope="module")
def document(page: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(reproduce(*STUDY, "--json", "--report", str(page)))
    return parsed


def test_the_document_keeps_its_schema(document: dict[str, Any]) -> None:
    jsonschema.validate(document, document_schema())


def test_the_schema_that_is_published_is_that_of_the_document(
    golden: Callable[[str, str], None],
) -> None:
    text = json.dumps(document_schema(), indent=2, sort_keys=True) + "\n"
    golden("../../schemas/reproduction.schema.json", text)


def test_every_statement_is_there_with_the_papers_value_beside_ours(
    document: dict[str, Any],
) -> None:
    rows = document["statements"]
    assert [row["id"] for row in rows] == [statement.id for statement in STATEMENTS]
    by_id = {row["id"]: row for row in rows}
    study = by_id["fig9-all-devices"]
    assert study["paper"] is True
    assert study["ours"] is study["met"]
    assert study["met"] is not None
    unknown = by_id["multitask-clip-10-megatron-range"]
    assert (unknown["paper"], unknown["ours"], unknown["met"]) == ([1.31, 1.63], None, None)
    assert "not evaluated" in unknown["explanation"]
    judged = [row["met"] for row in rows if row["met"] is not None]
    assert document["met"] == sum(judged)
    assert document["judged"] == len(judged)


def test_parts_that_were_not_asked_for_are_not_there(document: dict[str, Any]) -> None:
    assert set(document["parts"]) == {"fig4", "fig9", "fig15"}
    strategies = document["parts"]["fig9"]["strategies"]
    assert {"spindle", "seq", "uniform", "optimus", "stmm"} <= set(strategies)
    assert all(len(row["devices"]) == 16 for row in strategies.values())


def test_the_same_options_give_the_same_bytes_but_for_wall_times(
    document: dict[str, Any], page: Path, tmp_path: Path
) -> None:
    other = tmp_path / "page.html"
    again = json.loads(reproduce(*STUDY, "--json", "--report", str(other)))
    assert set(document["wall_clock"]) == set(again["wall_clock"])
    assert document["provenance"]["not_reproducible"] == ["wall_clock"]
    for one in (document, again):
        one.pop("wall_clock")
        for row in one["statements"]:
            if row["id"] == "planning-time":
                assert row["ours"] is None
    assert document == again
    assert page.read_bytes() == other.read_bytes()


def test_the_page_opens_offline_and_has_a_place_for_every_chart(
    document: dict[str, Any], page: Path
) -> None:
    html = page.read_text(encoding="utf-8")
    assert 'src="http' not in html
    for chart in ("fig4", "fig9-time", "fig9-devices", "fig9-metaops", "fig15"):
        assert f'<div id="{chart}"' in html
    for row in document["statements"]:
        assert row["section"] in html


def test_the_table_says_how_many_statements_are_met() -> None:
    text = reproduce("fig9", "--gpus", "16", "--batch-scale", "0.25")
    assert "fig9-all-devices" in text
    assert "statements met" in text
    assert "not evaluated in this run" in text
    assert "Not all cases were run" in text


@pytest.mark.slow
def test_a_part_that_no_cluster_size_suits_is_named() -> None:
    said = reproduce("fig4", "fig9", "--gpus", "8")
    assert "fig9 wasn't run: it needs a cluster of 16 GPUs" in said
    assert "fig4 wasn't run" not in said
    assert "Times: analytic model" in said


@pytest.fixture(scope="module")
def explained() -> Reproduction:
    """Give single tasks with their experiments, run once for the tests of what is shown of them."""

    @contextmanager
    def begin(what: str, count: int) -> Iterator[Callable[[str], None]]:
        assert what in ("cases", "cases of experiments", "times the slowest case")
        assert count > 0
        yield lambda _: None

    return run(Options(parts=("fig14", EXPLAIN), gpus=(8,)), 1, begin)


def test_experiments_try_what_is_not_met(
    explained: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spindle_sim.reproduce.reproduce", lambda *_: explained)
    found = json.loads(reproduce("--json"))
    jsonschema.validate(found, document_schema())
    unmet = {row["id"] for row in found["statements"] if row["met"] is False}
    tried = {row["statement"] for row in found["experiments"]}
    assert tried
    assert tried <= unmet
    # One node needs no network, and nothing is placed anew.
    never = {"network cards x 1/4", "eight cards a node", "sequential plans"}
    assert {row["change"] for row in found["experiments"]} == {one.name for one in CHANGES} - never
    rows = found["experiments"]
    for row in found["statements"]:
        if row["id"] in tried:
            assert row["explanation"].startswith(("met under", "under none", "none of"))
            assert row["experiment"] is None or row["experiment"] in rows
            met = [one for one in rows if one["statement"] == row["id"] and one["met"]]
            assert not met or row["experiment"] == met[0]
        elif row["id"] != "planning-time":
            assert row["experiment"] is None


def test_table_and_page_have_what_each_experiment_showed(
    explained: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spindle_sim.reproduce.reproduce", lambda *_: explained)
    text = reproduce("--report", str(tmp_path / "page.html"))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Experiment" in text
    assert "Of those tried" in text
    for trial in explained.trials:
        assert trial.change in html
        if trial.met:
            assert f"{trial.change}: " in text


def test_all_is_everything_with_the_experiments() -> None:
    assert tuple(PARTS) == ALL_PARTS
    assert EXPLAIN in Options().parts
    assert EXPLAIN not in Options().judged_parts


def test_the_parts_are_listed_with_what_they_are() -> None:
    lines = reproduce("--list").splitlines()
    assert [line.split()[0] for line in lines] == list(PARTS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fig99"], "no part 'fig99'"),
        (["--gpus", "12"], "--gpus 12"),
        (["--gpus", "8,"], "--gpus 8,"),
        (["--gpus", "8,16,8"], "--gpus 8,16,8: a size is given twice"),
        (["fig9", "--report", "/nowhere/page.html"], "/nowhere"),
    ],
)
def test_wrong_usage_says_what_is_wrong(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reproduce(*arguments)
