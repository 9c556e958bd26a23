"""`spindle validate-measured`: published rows through the plan and the simulator."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from spindle_sim.errors import InfeasibleError, InputError, UsageError

SINGLE = "measured/a100_megatron_single_node.csv"
MULTI = "measured/a100_megatron_multi_node.csv"
HEADER = "gpus,global_batch,micro_batch,hidden,heads,layers,sequence,tp,dp,pp,iteration_ms"
ROW = "8,16,2,1024,16,16,1024,2,4,1,127.6"
WRONG_TP = "6,16,2,1024,16,16,1024,3,1,2,127.6"  # 16 heads can't be divided by three


def table(name: str, step: int) -> str:
    text = resources.files("spindle_traces").joinpath(name).read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    header, *rows = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join([*comments, header, *rows[::step]]) + "\n"


def is_quick(row: str) -> bool:
    """Leave out more than 512 GPUs, and the full recomputation beside each selective one.

    Those of deep pipelines take longest.
    """
    gpus, *cells = row.split(",")
    has_other = "full" in cells and int(gpus) in (280, 512) and cells[7] == "1"
    return int(gpus) <= 512 and not has_other


def run(file: Path, *arguments: str) -> str:
    done = CliRunner().invoke(
        application(), ["validate-measured", str(file), *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def document(file: Path, *arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(run(file, "--json", *arguments))
    return parsed


def test_every_eighteenth_row_of_one_node_is_met_within_seven_percent(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(table(SINGLE, 18))
    found = document(file)
    assert len(found["rows"]) == 40
    assert found["failed"] == 0
    assert found["mean_abs_error"] < 0.07
    assert found["median_abs_error"] < 0.03


@pytest.mark.slow
def test_all_rows_of_one_node_have_the_errors_that_the_documentation_states(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(table(SINGLE, 1))
    found = document(file)
    assert len(found["rows"]) == 708
    assert found["failed"] == 0
    assert found["mean_abs_error"] < 0.048
    assert found["median_abs_error"] < 0.03


@pytest.mark.slow
def test_all_rows_of_many_nodes_have_the_errors_that_the_documentation_states(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(table(MULTI, 1))
    found = document(file)
    assert len(found["rows"]) == 51
    assert found["failed"] == 0
    assert found["mean_abs_error"] < 0.052
    assert found["median_abs_error"] < 0.03


@pytest.mark.slow
def test_published_rows_that_no_fit_saw_have_the_errors_that_the_documentation_states(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv"
    lines = table("measured/a100_megatron_lm_published.csv", 1).splitlines()
    wanted = [line for line in lines if not line[0].isdigit() or is_quick(line)]
    file.write_text("\n".join(wanted) + "\n")
    found = document(file)
    assert len(found["rows"]) == 11
    assert found["failed"] == 0
    assert found["mean_abs_error"] < 0.06
    file.write_text(table("measured/a100_mpt_fsdp_published.csv", 5))
    assert document(file)["mean_abs_error"] < 0.13


def test_columns_left_alone_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER},recomputation\n{ROW},none\n")
    assert "Columns left alone: recomputation." in run(file)
    assert document(file)["ignored_columns"] == ["recomputation"]


def test_a_row_that_does_not_fit_by_our_count_is_simulated_and_said(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n8,8,1,5120,40,16,2048,1,8,1,2000\n")
    (row,) = document(file)["rows"]
    assert row["memory_share"] > 1
    assert row["simulated_ms"] is not None
    text = " ".join(run(file).split())
    assert "line 2" in text
    assert "of a GPU's memory; simulated as if it fitted" in text


def test_rows_say_what_they_ran_on_and_under(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER},gpu,software\n{ROW},h100,eager\n{ROW},,\n")
    text = " ".join(run(file).split())
    assert "H100-SXM5-80GB, A100-SXM4-80GB, software eager, megatron-deepspeed-2022." in text


def test_an_error_is_the_simulated_time_over_the_measured_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"# a comment\n{HEADER}\n{ROW}\n\n# another\n{ROW.replace('127.6', '255.2')}\n")
    found = document(file)
    one, twice = found["rows"]
    assert one["error"] == pytest.approx(one["simulated_ms"] / 127.6 - 1)
    assert twice["simulated_ms"] == one["simulated_ms"]
    assert found["mean_abs_error"] == pytest.approx((abs(one["error"]) + abs(twice["error"])) / 2)
    assert {"gpus", "tp", "measured_ms", "memory_share"} <= one.keys()


def test_columns_may_come_in_any_order_beside_others(tmp_path: Path) -> None:
    names, cells = HEADER.split(","), ROW.split(",")
    file, turned = tmp_path / "rows.csv", tmp_path / "turned.csv"
    file.write_text(f"{HEADER}\n{ROW}\n")
    turned.write_text(f"note,{','.join(names[::-1])}\nx,{','.join(cells[::-1])}\n")
    assert document(turned)["rows"] == document(file)["rows"]


def test_a_row_that_cannot_be_planned_is_counted_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n{ROW}\n{WRONG_TP}\n")
    found = document(file)
    assert found["failed"] == 1
    assert found["rows"][1]["simulated_ms"] is None
    assert "tp 3" in found["rows"][1]["problem"]
    text = run(file)
    assert "line 3" in text
    assert "1 failed" in text


def test_a_table_of_which_no_row_can_be_planned_has_no_feasible_plan(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n{WRONG_TP}\n")
    with pytest.raises(InfeasibleError, match="no row could be planned"):
        run(file)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("8,16,2,1024,16,16,1024,2,2,1,127.6", "tp 2 x dp 2 x pp 1 are 4 GPUs, but gpus is 8"),
        ("8,16,2,1024,16,16,1024,2,4,2,127.6", "tp 2 x dp 4 x pp 2 are 16 GPUs, but gpus is 8"),
        ("8,16,2,1024,16,16,1000000,1,4,2,127.6", "times a GPU's memory by our count"),
        ("8,15,2,1024,16,16,1024,2,2,2,127.6", "dp 2 x micro_batch 2 doesn't divide batch 15"),
        ("8,16,2,1000,16,16,1024,2,2,2,127.6", r"heads (16) must divide width (1000)"),
        ("12,24,2,1024,16,16,1024,2,6,1,127.6", "12 GPUs are no whole number of nodes of 8"),
        ("8,16,2,1024,16,999999999,1024,2,2,2,127.6", "more than the 200,000 that can be planned"),
        ("8,100000000,1,1024,16,16,1024,1,1,8,127.6", "100,000,000 micro-batches are more than"),
    ],
)
def test_a_row_that_would_be_planned_for_other_gpus_or_for_minutes_fails_and_says_why(
    tmp_path: Path, row: str, reason: str
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n{ROW}\n{row}\n")
    good, wrong = document(file)["rows"]
    assert good["simulated_ms"] is not None
    assert wrong["simulated_ms"] is None
    assert reason in wrong["problem"]


def test_a_report_that_has_nothing_to_show_is_not_said_to_be_written(tmp_path: Path) -> None:
    file, page = tmp_path / "rows.csv", tmp_path / "page.html"
    file.write_text(f"{HEADER}\n{WRONG_TP}\n")
    done = CliRunner().invoke(
        application(), ["validate-measured", str(file), "--report", str(page)]
    )
    assert isinstance(done.exception, InfeasibleError)
    assert not page.exists()
    assert "Report" not in done.stdout


def test_a_table_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    file, saved = tmp_path / "rows.csv", tmp_path / "saved.csv"
    file.write_text(f"{HEADER}\n{ROW}\n")
    saved.write_bytes(f"\ufeff{HEADER},,\r\n{ROW},,\r\n".encode())
    assert document(saved)["rows"] == document(file)["rows"]


def test_the_report_shows_both_charts_and_is_the_same_every_time(tmp_path: Path) -> None:
    file, one, two = tmp_path / "rows.csv", tmp_path / "one.html", tmp_path / "two.html"
    file.write_text(table(SINGLE, 200))
    for page in (one, two):
        assert "mean absolute error" in run(file, "--report", str(page))
    assert one.read_bytes() == two.read_bytes()
    text = one.read_text()
    assert "histogram" in text
    assert "Farthest off" in text


def test_flash_attention_is_faster_than_unfused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n8,32,8,2048,16,16,2048,1,4,2,500\n")
    unfused, flash = (document(file, *more)["rows"][0] for more in ((), ("--flash",)))
    assert flash["simulated_ms"] < unfused["simulated_ms"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no rows"),
        (f"{HEADER}\n", "no rows"),
        (f"{HEADER.replace('micro_batch,', '')}\n", "column micro_batch is missing"),
        ("gpus,sequenze\n", "column hidden is missing; the file has: gpus, sequenze"),
        (f"{HEADER.replace(',', ';')}\n", "cells are separated by ';'; separate them by commas"),
        (f"{HEADER}\n{ROW.replace('1024', '0')}\n", "hidden must be a whole number"),
        (f"{HEADER}\n{ROW.replace('127.6', 'nan')}\n", "iteration_ms must be milliseconds"),
        (f"{HEADER}\n8,16\n", "micro_batch must be a whole number"),
        (f"{HEADER},gpus\n{ROW},8\n", "gpus is given twice"),
        (f"{HEADER}\n{ROW},9\n", "line 2: has more cells than there are columns"),
        (f"{HEADER}\n{ROW.replace('1024', '9999999999')}\n", "from 1 to 999,999,999, not"),
        (f"{HEADER}\n{ROW.replace('127.6', '1e-320')}\n", "iteration_ms must be .* from 0.001"),
        (f"{HEADER}\n{ROW.replace('127.6', '1e300')}\n", "iteration_ms must be .* to 1e"),
    ],
)
def test_a_wrong_table_says_what_is_wrong_and_where(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=expected):
        run(file)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        run(tmp_path / "none.csv")


def test_unknown_software_and_two_kinds_of_nodes_are_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n{ROW}\n")
    with pytest.raises(UsageError, match="no such profile"):
        run(file, "--software", "megatron")
    with pytest.raises(UsageError, match="give one of them"):
        run(file, "--gpu", "a100", "--cluster", "a100:8")
