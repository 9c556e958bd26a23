"""`spindle validate-measured`: iterations that others measured, simulated anew, with the errors."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.options import JsonOutput, Report, integer_parser
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.errors import InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spindle_sim.estimate import Estimator
    from spindle_sim.whatif.measured import Comparison, MeasuredRow, Setting

__all__ = ["validate_measured"]

_DEFAULT_CLUSTER = "a100:8"
# As in the clusters of the published tables: 800 Gb/s a node.
_DEFAULT_NICS, _DEFAULT_NIC_BANDWIDTH = 4, "200Gb/s"
_SHOWN = 12

MeasuredFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="CSV with gpus, global_batch, micro_batch, hidden, heads, layers, sequence, tp, dp, pp"
        " and iteration_ms; optional: chunks, recompute, sequence_parallel, zero_stage,"
        " overlap_sync, attention, vocabulary, software, gpu, node_gbps. Lines that begin with #"
        " are comments.",
        show_default=False,
    ),
]


def validate_measured(
    file: MeasuredFile,
    *,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Nodes of eight of this GPU, 800 Gb/s.", show_default="a100"
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="Nodes as in this cluster instead, as a800:8, or a YAML file; rows say how many"
            " GPUs.",
            show_default=False,
        ),
    ] = None,
    software: Annotated[
        str, typer.Option(metavar="NAME", help="Software profile: what the rows were run with.")
    ] = "megatron-deepspeed-2022",
    vocabulary: Annotated[
        int,
        typer.Option(
            metavar="ROWS",
            parser=integer_parser("--vocabulary", least=1),
            help="Rows of the embedding; padded where tensor parallelism divides it.",
        ),
    ] = 50257,
    flash: Annotated[
        bool, typer.Option("--flash", help="The rows ran flash attention, not unfused kernels.")
    ] = False,
    report: Report = None,
    json: JsonOutput = False,
) -> None:
    """Plan and simulate measured iterations of GPT models; print how far the simulator is off.

    Rows are full recomputation under 1F1B, as Megatron-LM runs it, unless their columns say
    otherwise; columns of a row come before the options.
    """
    check_outputs([file, cluster], report=report)
    from spindle_sim.whatif.measured import read_table

    setting = _setting(gpu, cluster, software, vocabulary, flash=flash)
    table = read_table(file)
    found = _compare(table.rows, setting)
    if report is not None and not _write_report(report, found, file):
        report = None  # nothing to draw
    if json:
        document = _document(found, setting)
        print_json(document | {"ignored_columns": list(table.ignored_columns)})
    else:
        _print(found, setting, report)
        if table.ignored_columns:
            names = ", ".join(table.ignored_columns)
            stdout_console().print(f"Columns left alone: {names}.", soft_wrap=True)
    if all(item.simulated_s is None for item in found):
        raise InfeasibleError(f"no row could be planned; the first: {found[0].problem}")


def _setting(
    gpu: str | None, cluster: str | None, software: str, vocabulary: int, *, flash: bool
) -> "Setting":
    from spindle_sim.cluster import parse_cluster
    from spindle_sim.errors import UsageError
    from spindle_sim.estimate import software_model
    from spindle_sim.whatif.measured import Setting

    if gpu is not None and cluster is not None:
        raise UsageError("--gpu and --cluster: give one of them")
    if cluster is not None:
        node = parse_cluster(cluster)
    else:
        node = parse_cluster(
            _DEFAULT_CLUSTER if gpu is None else f"{gpu}:8",
            nics_per_node=_DEFAULT_NICS,
            nic_bandwidth=_DEFAULT_NIC_BANDWIDTH,
        )
    return Setting(
        node=node, software=software_model(software), vocabulary=vocabulary, unfused=not flash
    )


def _compare(rows: "Sequence[MeasuredRow]", setting: "Setting") -> "list[Comparison]":
    from spindle_sim.whatif.measured import compare_row

    estimators: dict[tuple[object, ...], Estimator] = {}
    found = []
    with progress(len(rows)) as advance:
        for number, row in enumerate(rows, start=1):
            advance(f"row {number} of {len(rows)}")
            found.append(compare_row(row, setting, estimators))
    return found


def _document(found: "Sequence[Comparison]", setting: "Setting") -> dict[str, object]:
    from spindle_sim.whatif.measured import mean_abs_error, median_abs_error

    return {
        "node": setting.node.gpu.name,
        "software": setting.software.name,
        "rows": [
            {
                **asdict(item.row.configuration),
                "measured_ms": 1e3 * item.row.measured_s,
                "simulated_ms": None if item.simulated_s is None else 1e3 * item.simulated_s,
                "error": item.error,
                "memory_share": item.memory_share,
                "problem": item.problem or None,
            }
            for item in found
        ],
        "mean_abs_error": mean_abs_error(found),
        "median_abs_error": median_abs_error(found),
        "failed": sum(item.simulated_s is None for item in found),
    }


def _summary(found: "Sequence[Comparison]") -> str:
    from spindle_sim.whatif.measured import mean_abs_error, median_abs_error

    failed = sum(item.simulated_s is None for item in found)
    mean, middle = mean_abs_error(found), median_abs_error(found)
    if mean is None or middle is None:
        return f"{len(found)} rows, none of which could be planned"
    words = f"{len(found) - failed} rows: mean absolute error {mean:.1%}, median {middle:.1%}"
    return words + (f"; {failed} failed" if failed else "")


def _name(item: "Comparison") -> str:
    row = item.row.configuration
    name = (
        f"{row.gpus} GPUs, {row.layers}x{row.hidden}, batch {row.global_batch}/{row.micro_batch},"
        f" tp {row.tp} dp {row.dp} pp {row.pp}"
    )
    return name if row.recompute == "full" else f"{name}, recompute {row.recompute}"


def _where(found: "Sequence[Comparison]", setting: "Setting") -> str:
    """Name the GPUs and the software of the rows."""
    own = [setting.of(item.row.configuration) for item in found]
    gpus, names = (
        ", ".join(dict.fromkeys(values))
        for values in ([item.node.gpu.name for item in own], [item.software.name for item in own])
    )
    return f"{gpus}, software {names}"


def _print(found: "Sequence[Comparison]", setting: "Setting", report: str | None) -> None:
    console = stdout_console()
    known = [item for item in found if item.error is not None]
    title = "Rows by error"
    if len(known) > _SHOWN:
        title = f"The {_SHOWN} of {len(known)} rows that are farthest off"
    table = new_table(title, "Row", "Measured", "Simulated", "Error")
    for item in sorted(known, key=lambda item: -abs(item.error or 0.0))[:_SHOWN]:
        table.add_row(
            _name(item),
            f"{1e3 * item.row.measured_s:,.1f} ms",
            f"{1e3 * (item.simulated_s or 0.0):,.1f} ms",
            f"{item.error:+.1%}",
        )
    if known:
        print_table(console, table)
        _print_histogram(known)
    for item in found:
        if item.problem:
            console.print(f"line {item.row.line}: {_name(item)}: {item.problem}", soft_wrap=True)
        elif item.memory_share is not None and item.memory_share > 1:
            console.print(
                f"line {item.row.line}: {_name(item)}: by our count takes"
                f" {item.memory_share:.0%} of a GPU's memory; simulated as if it fitted",
                soft_wrap=True,
            )
    console.print(f"{_summary(found)}. {_where(found, setting)}.", soft_wrap=True)
    if report is not None:
        console.print(f"Report: {report}", soft_wrap=True)


def _print_histogram(known: "Sequence[Comparison]") -> None:
    """Chart how many rows are off by how much."""
    bounds = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, float("inf"))
    console, last = stdout_console(), 0.0
    for bound in bounds:
        count = sum(last <= abs(item.error or 0.0) < bound for item in known)
        name = f"{last:.0%} to {bound:.0%}" if bound < float("inf") else f"above {last:.0%}"
        bar = "#" * round(60 * count / len(known))
        console.print(f"  {name:>10} {count:>6}  {bar}")
        last = bound


def _write_report(path: str, found: "Sequence[Comparison]", file: str) -> bool:
    from spindle_sim.report.measured_page import MeasuredPoint, write_measured

    points = [
        MeasuredPoint(
            name=_name(item),
            group=f"tp {item.row.configuration.tp}",
            measured_s=item.row.measured_s,
            simulated_s=item.simulated_s,
        )
        for item in found
        if item.simulated_s is not None
    ]
    if points:
        write_measured(path, points, title=f"{file}", summary=_summary(found))
    return bool(points)
