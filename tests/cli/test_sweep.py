"""`spindle sweep`: the grid, its table, JSON and CSV."""

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from spindle_sim.errors import InfeasibleError

SMALL = ["--cluster", "a800:1x2,a800:2x2", "--tasks", "1,2", "--set", "nics-per-node=1,2"]


def sweep(*arguments: str) -> str:
    done = CliRunner().invoke(application(), ["sweep", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(sweep(*SMALL, "--json"))
    return parsed


def test_every_combination_is_a_point_and_strategies_change_fastest(
    document: dict[str, Any],
) -> None:
    found = [
        (row["tasks"], row["cluster"], row["nics_per_node"], row["strategy"])
        for row in document["points"]
    ]
    axes = (["1", "2"], ["a800:1x2", "a800:2x2"], ["1", "2"], ["spindle", "seq"])
    assert found == list(product(*axes))
    assert all(row["error"] is None and row["iteration_s"] > 0 for row in document["points"])
    assert {row["devices"] for row in document["points"]} == {2, 4}


def test_the_figures_are_those_of_compare(document: dict[str, Any]) -> None:
    arguments = ["multitask-clip", "--tasks", "2", "--cluster", "a800:2x2", "--nics-per-node", "1"]
    done = CliRunner().invoke(
        application(), ["compare", *arguments, "--strategies", "spindle,seq", "--json"]
    )
    compared = {row["strategy"]: row for row in json.loads(done.stdout)["strategies"]}
    for row in document["points"]:
        if (row["tasks"], row["cluster"], row["nics_per_node"]) == ("2", "a800:2x2", "1"):
            other = compared[row["strategy"]]
            shared = row.keys() & other.keys()
            assert {"iteration_s", "sync_s", "rounds", "error"} <= shared
            assert {key: row[key] for key in shared} == {key: other[key] for key in shared}


def test_the_same_inputs_give_the_same_bytes_in_json_and_csv(
    document: dict[str, Any], tmp_path: Path
) -> None:
    tables = [tmp_path / "one.csv", tmp_path / "two.csv"]
    printed = [sweep(*SMALL, "--json", "--csv", str(table)) for table in tables]
    assert printed[0] == printed[1]
    assert json.loads(printed[0]) == document
    assert tables[0].read_bytes() == tables[1].read_bytes()
    with tables[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = [
        {key: "" if value is None else str(value) for key, value in row.items()}
        for row in document["points"]
    ]
    assert rows == wanted


def test_an_infeasible_point_is_shown_as_such_beside_the_others() -> None:
    arguments = ["qwen-val", "--cluster", "a800:1x1,a800:2x8", "--strategies", "seq"]
    printed = sweep(*arguments)
    assert "all a800:1x1 1 seq: no plan: " in printed
    (poor, rich) = json.loads(sweep(*arguments, "--json"))["points"]
    assert poor["iteration_s"] is None
    assert poor["rounds"] is None
    assert "device" in poor["error"]
    assert rich["error"] is None
    assert f"{1e3 * rich['iteration_s']:,.1f} ms" in printed


def test_a_sweep_without_any_feasible_point_fails() -> None:
    arguments = ["sweep", "qwen-val", "--cluster", "a800:1x1", "--strategies", "seq"]
    with pytest.raises(InfeasibleError, match="no feasible plan at any point"):
        CliRunner().invoke(application(), arguments, catch_exceptions=False)


def test_the_table_says_when_gradients_synchronize_and_json_what_was_simulated() -> None:
    arguments = ["--cluster", "a800:1x2", "--tasks", "1", "--strategies"]
    assert "synchronize after the backward" in sweep(*arguments, "seq")
    assert "synchronize beside the backward" in sweep(*arguments, "seq", "--overlap-sync")
    # deepspeed synchronizes so always, and all others beside it do, too
    done = json.loads(sweep(*arguments, "seq,deepspeed", "--json"))
    assert done["provenance"]["overlap_sync"] is True


def test_the_table_has_the_cost_of_a_million_samples() -> None:
    arguments = ["--cluster", "a800:1x1,a800:1x2", "--tasks", "1", "--strategies", "seq"]
    printed = sweep(*arguments)
    header = next(line for line in printed.splitlines() if "GPU-h/M" in line)
    column = header.split().index("GPU-h/M") - len(header.split())
    for row in json.loads(sweep(*arguments, "--json"))["points"]:
        line = next(line for line in printed.splitlines() if f" {row['cluster']} " in line)
        # the memory is two words: "63.5 GiB"
        shown = float(line.split()[column - 1].replace(",", ""))
        million_s = 1e6 / row["samples_per_s"]
        assert shown == pytest.approx(row["devices"] * million_s / 3600, abs=0.005)


def test_batches_and_options_reach_the_points() -> None:
    arguments = ["--cluster", "a800:1x4", "--tasks", "1", "--strategies", "seq", "--json"]
    half, whole = json.loads(sweep(*arguments, "--batch-scale", "0.5,1"))["points"]
    assert half["iteration_s"] < whole["iteration_s"]
    (beside,) = json.loads(sweep(*arguments, "--overlap-sync"))["points"]
    assert beside["iteration_s"] < whole["iteration_s"]
    (faster, slower) = json.loads(
        sweep(
            "--cluster",
            "a800:2x2",
            "--tasks",
            "1",
            "--strategies",
            "seq",
            "--json",
            "--set",
            "nic-bandwidth=400Gb/s,100Gb/s",
            "--set",
            "oversubscription=1",
        )
    )["points"]
    assert faster["iteration_s"] < slower["iteration_s"]
