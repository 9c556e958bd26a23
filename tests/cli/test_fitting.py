"""Tables in narrow and wide terminals: every figure is whole."""

import io
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from rich.console import Console
from rich.table import Table

from spindle_sim import builtin_workload, parse_cluster
from spindle_sim.cli.comparison import Comparison, Outcome, compare_strategies
from spindle_sim.cli.console import new_table
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.tables import print_inputs, print_outcomes
from spindle_sim.units import format_bytes

WIDTHS = [40, 80, 100, 200]
COMPARISON = Comparison(
    workload=builtin_workload("multitask-clip").with_first_tasks(2),
    cluster=parse_cluster("a800:1x4"),
    strategies=("spindle", "seq", "optimus"),
)


@cache
def outcomes() -> tuple[Outcome, ...]:
    return compare_strategies(COMPARISON, lambda _: None)


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)


def text_of(written: Console) -> str:
    assert isinstance(written.file, io.StringIO)
    return written.file.getvalue()


def printed(width: int) -> str:
    written = console(width)
    print_outcomes(written, outcomes())
    return text_of(written)


def figures(outcome: Outcome) -> list[str]:
    """Give every figure that is printed of a strategy."""
    assert outcome.result is not None
    results = [other.result for other in outcomes() if other.result is not None]
    smallest_s = min(result.plan.optimum_s for result in results)
    result, summary = outcome.result, outcome.result.summary
    parts_s = (
        summary.forward_backward_s,
        summary.sync_s - summary.optimizer_s,
        summary.optimizer_s,
        summary.send_recv_s,
        summary.idle_s,
    )
    return [
        f"{1e3 * summary.iteration_s:,.1f} ms",
        f"{results[1].summary.iteration_s / summary.iteration_s:.2f}x",
        f"{summary.samples_per_s:.1f}",
        f"{summary.utilization:.1%}",
        f"{result.compute_s / smallest_s - 1:+.1%}",
        format_bytes(summary.peak_memory_bytes),
        f"{1e3 * outcome.planning_s:,.1f} ms",
        *(f"{1e3 * part:,.1f} ms ({part / summary.iteration_s:.0%})" for part in parts_s),
    ]


@pytest.mark.parametrize("width", [20, *WIDTHS])
def test_every_figure_of_the_comparison_is_whole(width: int) -> None:
    text = printed(width)
    assert "…" not in text
    for outcome in outcomes():
        for figure in figures(outcome):
            assert re.search(rf"(?<![\w.,+]){re.escape(figure)}(?![\w.,])", text), figure


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_figures_is_wider_than_the_terminal(width: int) -> None:
    text = printed(width)
    table = text[: text.index("* fastest.")]
    assert max(map(len, table.splitlines())) <= width


def test_wide_terminals_get_one_table_each_and_narrow_ones_blocks() -> None:
    headers = {width: len(re.findall("Strategy", printed(width))) for width in WIDTHS}
    assert (headers[40], headers[200]) == (0, 2)
    assert headers[80] == 4
    assert re.search(r"^spindle( \*)?\n  Iteration: [\d,.]+ ms\n", printed(40), re.MULTILINE)


@pytest.mark.parametrize("width", range(1, 60, 4))
def test_any_table_keeps_its_cells_its_order_and_its_names(width: int) -> None:
    table = new_table("A title", "Name", "First", "Second", "Third")
    cells = [[f"row{r}", *(f"{1234567.5 + 10 * r + c:.1f}" for c in range(3))] for r in range(3)]
    for row in cells:
        table.add_row(*row)
    written = console(width)
    print_table(written, table)
    text = text_of(written)
    assert "…" not in text
    for row in cells:
        places = [text.index(cell) for cell in row]
        assert places[1] < places[2] < places[3] or width > 20
    assert text.count("A title") == 1


def test_a_row_that_has_nothing_to_say_is_not_repeated() -> None:
    table: Table = new_table("", "Name", "First", "Second")
    table.add_row("whole", "1" * 12, "2" * 12)
    table.add_row("none", "no plan")
    written = console(28)
    print_table(written, table)
    assert text_of(written).count("whole") == 2
    assert text_of(written).count("none") == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_of_that_width_cuts_nothing_off(width: int) -> None:
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "spindle_sim", "compare", "--tasks", "1"]
    with subprocess.Popen(
        [*command, "--cluster", "a800:1x2", "--strategies", "spindle,seq"],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"},
    ) as process:
        os.close(slave)
        chunks = []
        try:
            while chunk := os.read(master, 65536):
                chunks.append(chunk)
        except OSError:  # Linux's way to say that the other end is closed
            pass
        os.close(master)
        assert process.wait() == 0
    text = b"".join(chunks).decode()
    assert "spindle" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("nics", "bandwidth", "shown"),
    [
        (1, "400Gb/s", "1 x 400 Gb/s network card a node"),
        (8, "25GB/s", "8 x 200 Gb/s network cards a node"),
    ],
)
def test_network_cards_are_told_in_bits_as_they_are_sold(
    nics: int, bandwidth: str, shown: str
) -> None:
    cluster = parse_cluster("a800:2x8", nics_per_node=nics, nic_bandwidth=bandwidth)
    written = console(200)
    print_inputs(written, COMPARISON.workload, cluster)
    assert f", {shown}\n" in text_of(written)
