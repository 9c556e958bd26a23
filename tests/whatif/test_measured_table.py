"""Columns and cells of tables of measured iterations."""

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_fit import NODE
from spindle_sim.errors import InputError, Problem
from spindle_sim.estimate import EAGER, software_model
from spindle_sim.planner.strategies.parallel import Recompute
from spindle_sim.whatif.measured import Setting, compare_row
from spindle_sim.whatif.measured_table import read_table

HEADER = "gpus,global_batch,micro_batch,hidden,heads,layers,sequence,tp,dp,pp,iteration_ms"
ROW = "8,16,2,1024,16,16,1024,2,2,2,127.6"
SETTING = Setting(node=NODE, software=software_model("megatron-deepspeed-2022"))


def written(folder: Path, columns: str, *cells: str) -> Path:
    file = folder / "rows.csv"
    lines = [f"{HEADER}{columns}", *(f"{ROW}{text}" for text in cells)]
    file.write_text("\n".join(lines) + "\n")
    return file


def simulated_s(folder: Path, columns: str = "", cells: str = "") -> float:
    (row,) = read_table(written(folder, columns, cells)).rows
    found = compare_row(row, SETTING)
    assert found.problem == ""
    assert found.simulated_s is not None
    return found.simulated_s


def test_optional_columns_say_what_a_row_ran_under(tmp_path: Path) -> None:
    columns = (
        ",recompute,sequence_parallel,chunks,zero_stage,overlap_sync,attention,vocabulary"
        ",software,gpu,node_gbps"
    )
    cells = ",Selective,true,2,1,TRUE,flash,32000,eager,H100,3200"
    row = read_table(written(tmp_path, columns, cells)).rows[0].configuration
    assert row.recompute is Recompute.SELECTIVE
    assert (row.sequence_parallel, row.overlap_sync) == (True, True)
    assert (row.chunks, row.zero_stage, row.vocabulary) == (2, 1, 32000)
    own = SETTING.of(row)
    assert own.software is EAGER
    assert not own.unfused
    assert own.node.gpu.name.startswith("H100")
    assert own.node.nics_per_node * own.node.nic_bandwidth_bytes_per_s == pytest.approx(400e9)


def test_empty_cells_are_columns_that_are_not_there(tmp_path: Path) -> None:
    given_row = read_table(written(tmp_path, ",recompute,gpu", ",,")).rows[0]
    plain = read_table(written(tmp_path, "", "")).rows[0]
    assert given_row == plain
    assert SETTING.of(plain.configuration) == SETTING


def test_what_is_not_computed_again_saves_its_time(tmp_path: Path) -> None:
    none, selective, full = (
        simulated_s(tmp_path, ",recompute", f",{name}") for name in ("none", "selective", "full")
    )
    assert none < selective < full == simulated_s(tmp_path)


def test_interleaving_fills_pipelines_sooner(tmp_path: Path) -> None:
    plain, cut = (simulated_s(tmp_path, ",chunks", text) for text in (",1", ",2"))
    assert cut < plain


def test_gradients_of_one_node_are_summed_beside_the_backward_unless_a_row_says_otherwise(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv"

    def seconds(row: str, cell: str) -> float:
        file.write_text(f"{HEADER},overlap_sync\n{row},{cell}\n")
        found = compare_row(read_table(file).rows[0], SETTING)
        assert found.simulated_s is not None, found.problem
        return found.simulated_s

    one, two = "8,16,2,2048,16,16,1024,1,8,1,200", "16,32,2,2048,16,16,1024,1,16,1,200"
    assert seconds(one, "") == seconds(one, "true") < seconds(one, "false")
    assert seconds(two, "true") < seconds(two, "") == seconds(two, "false")


def test_a_slower_network_and_a_larger_vocabulary_take_longer(tmp_path: Path) -> None:
    assert simulated_s(tmp_path, ",vocabulary", ",250000") > simulated_s(tmp_path)
    wide = "16,32,2,1024,16,16,1024,1,16,1,127.6"
    file = tmp_path / "rows.csv"
    times = []
    for rate in (100, 1600):
        file.write_text(f"{HEADER},node_gbps\n{wide},{rate}\n")
        found = compare_row(read_table(file).rows[0], SETTING)
        assert found.simulated_s is not None, found.problem
        times.append(found.simulated_s)
    assert times[0] > times[1]


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        ("recompute", "partly", "recompute must be none or selective or full, not 'partly'"),
        ("sequence_parallel", "yes", "sequence_parallel must be true or false, not 'yes'"),
        ("zero_stage", "4", "zero_stage must be a ZeRO stage from 0 to 3"),
        ("attention", "paged", "attention must be flash or unfused"),
        ("software", "megatron", "software must be a software profile; "),
        ("gpu", "a10", "gpu must be a GPU of `spindle gpus`; did you mean"),
        ("node_gbps", "inf", "node_gbps must be Gb/s from 1 to 1,000,000"),
        ("chunks", "1.5", "chunks must be a whole number"),
    ],
)
def test_a_wrong_cell_of_an_optional_column_is_named_with_its_line(
    tmp_path: Path, column: str, cell: str, expected: str
) -> None:
    with pytest.raises(InputError) as raised:
        read_table(written(tmp_path, f",{column}", ",", f",{cell}"))
    (problem,) = raised.value.problems
    assert problem.path == "line 3"
    assert problem.message.startswith(expected)


def test_columns_that_nothing_reads_are_named(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, ",recomputation,note", ",full,x"))
    assert table.ignored_columns == ("recomputation", "note")


def test_of_very_many_problems_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_table(written(tmp_path, ",recompute", *[",no"] * 500))
    assert len(raised.value.problems) == 21
    assert raised.value.problems[-1].message == "480 problems more"


def test_a_file_of_too_many_rows_or_bytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{HEADER}\n" + f"{ROW}\n" * 100_001)
    with pytest.raises(InputError, match="has more than 100,000 rows"):
        read_table(file)
    with file.open("wb") as stream:
        stream.truncate(65 * 2**20)
    with pytest.raises(InputError, match="has more than 64 MiB"):
        read_table(file)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_table(tmp_path)


@given(text=st.text(max_size=60))
def test_any_cell_is_read_or_refused_with_its_line(text: str, tmp_path_factory: object) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    file = folder / "rows.csv"
    cell = "".join(text.splitlines()).replace('"', "").replace(",", "")
    file.write_text(f'{HEADER},recompute\n{ROW},"{cell}"\n', encoding="utf-8", errors="replace")
    problems: tuple[Problem, ...] = ()
    try:
        read_table(file)
    except InputError as error:
        problems = error.problems
    assert all(problem.path == "line 2" for problem in problems)


@pytest.mark.parametrize(
    "name",
    [
        "a100_megatron_lm_published",
        "a100_megatron_deepspeed_published",
        "a100_mpt_fsdp_published",
        "h100_mpt_fsdp_published",
    ],
)
def test_shipped_tables_can_be_read_and_say_where_they_come_from(name: str) -> None:
    with resources.as_file(resources.files("spindle_traces").joinpath("measured")) as folder:
        table = read_table(folder / f"{name}.csv")
        text = (folder / f"{name}.csv").read_text(encoding="utf-8")
    assert table.ignored_columns == ("note",)
    assert "None of these rows was used in a fit" in text
    for row in table.rows:
        item = row.configuration
        assert item.gpus == item.tp * item.dp * item.pp
        assert item.global_batch % (item.dp * item.micro_batch) == 0
        assert item.layers % (item.pp * item.chunks) == 0
