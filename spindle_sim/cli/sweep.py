"""`spindle sweep`: what if there were more nodes, tasks, samples or network cards?"""

import io
import os
from collections.abc import Sequence
from csv import DictWriter
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.comparison import SimulationOptions
from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.grid import PointOptions, read_axes, read_points
from spindle_sim.cli.inputs import check_placement, read_profile, read_strategies
from spindle_sim.cli.options import (
    STRATEGY_NAMES,
    JsonOutput,
    OverlapSync,
    Placement,
    Profile,
    Seed,
)
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.errors import InfeasibleError
from spindle_sim.units import counted

if TYPE_CHECKING:
    from spindle_sim.whatif import Figures, Point, PointResult

    Rows = Sequence[tuple[Point, PointResult]]

__all__ = ["sweep"]

Clusters = Annotated[
    str, typer.Option(metavar="LIST", help="Clusters, as a800:1x8,a800:2x8, or YAML files.")
]
TaskCounts = Annotated[
    str | None,
    typer.Option(
        metavar="LIST", help="How many of the first tasks, such as 2,4,10.", show_default=False
    ),
]
BatchScales = Annotated[str, typer.Option(metavar="LIST", help="Factors of every task's batch.")]
NetworkSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=LIST",
        help="Values of nics-per-node, nic-bandwidth or oversubscription; repeat for more.",
        show_default=False,
    ),
]

_DEFAULT_WORKLOAD = "multitask-clip"
_DEFAULT_TASKS = "4"


def sweep(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="A built-in workload or a YAML file; without one, the first 4 tasks of"
            " multitask-clip.",
            show_default=False,
        ),
    ] = None,
    *,
    cluster: Clusters = "a800:2x8",
    tasks: TaskCounts = None,
    batch_scale: BatchScales = "1",
    settings: NetworkSettings = None,
    strategies: Annotated[
        str, typer.Option(metavar="LIST", help=f"Strategies, of {STRATEGY_NAMES}.")
    ] = "spindle,seq",
    placement: Placement = "spindle",
    profile: Profile = None,
    overlap_sync: OverlapSync = False,
    seed: Seed = 0,
    csv: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a row for each point.", show_default=False),
    ] = None,
    json: JsonOutput = False,
) -> None:
    """Plan and simulate every combination of the values given (comma-separated lists)."""
    check_outputs([workload, profile, *cluster.split(",")], csv=csv)
    axes = read_axes(
        tasks=_DEFAULT_TASKS if workload is None and tasks is None else tasks,
        clusters=cluster,
        batch_scales=batch_scale,
        settings=settings or [],
        strategies=read_strategies(strategies),
    )
    options = PointOptions(
        profile=read_profile(profile),
        placement=check_placement(placement),
        overlap_sync=overlap_sync,
        seed=seed,
    )
    rows = _run(read_points(_DEFAULT_WORKLOAD if workload is None else workload, axes, options))
    if csv is not None:
        _write_csv(csv, rows)
    if json:
        _print_json(rows, options)
    else:
        _print(rows, csv)
    _require_one(rows)


def _require_one(rows: "Rows") -> None:
    if all(result.figures is None for _, result in rows):
        raise InfeasibleError("no feasible plan at any point of the sweep")


def _run(points: "Sequence[Point]") -> "Rows":
    from spindle_sim.whatif import sweep as run

    with progress(len(points)) as advance:
        advance(counted(len(points), "point"))
        results = run(points, os.cpu_count() or 1, lambda point: advance(point.name))
    return list(zip(points, results, strict=True))


def _row(point: "Point", result: "PointResult") -> dict[str, object]:
    """Give one point as plain data; where no plan is feasible, every figure is None."""
    from spindle_sim.whatif import Figures

    figures: dict[str, object] = {item.name: None for item in fields(Figures)}
    if result.figures is not None:
        figures = asdict(result.figures)
    return {
        "workload": point.workload.name,
        **dict(point.labels),
        "devices": point.cluster.num_devices,
        **figures,
        "error": result.error or None,
    }


def _write_csv(path: str, rows: "Rows") -> None:
    from spindle_sim.plan.atomic import write_atomically

    text = io.StringIO()
    plain = [_row(*row) for row in rows]
    writer = DictWriter(text, list(plain[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    write_atomically(Path(path), text.getvalue().encode())


def _print_json(rows: "Rows", options: PointOptions) -> None:
    from spindle_sim.cli.rows import provenance

    simulated = SimulationOptions(overlap_sync=_beside(rows), seed=options.seed)
    shown: dict[str, object] = provenance(_profile(rows), simulated)
    shown["not_reproducible"] = []  # no figure here is wall time
    print_json({"provenance": shown, "points": [_row(*row) for row in rows]})


def _print(rows: "Rows", csv_path: str | None) -> None:
    from spindle_sim.cli.tables import print_cautions, print_synchronization
    from spindle_sim.units import format_bytes

    console = stdout_console()
    axes = [name.replace("_", " ").capitalize() for name, _ in rows[0][0].labels]
    shown = ("Iteration", "Samples/s", "GPU-h/M", "Util.", "Sync+opt.", "Idle", "Memory")
    table = new_table("", *axes, *shown)
    for point, result in rows:
        labels, figures = [value for _, value in point.labels], result.figures
        if figures is None:
            table.add_row(*labels, "no plan")
            continue
        table.add_row(
            *labels,
            f"{1e3 * figures.iteration_s:,.1f} ms",
            f"{figures.samples_per_s:.1f}",
            f"{_gpu_hours(figures, samples=1e6):,.2f}",
            f"{figures.utilization:.1%}",
            f"{figures.sync_s / figures.iteration_s:.0%}",
            f"{figures.idle_s / figures.iteration_s:.0%}",
            format_bytes(figures.peak_memory_bytes),
        )
    print_table(console, table, num_names=len(axes))
    console.print("GPU-h/M: GPU-hours for a million samples of all tasks.")
    for point, result in rows:
        if result.error:
            console.print(f"{point.name}: no plan: {result.error}", soft_wrap=True)
    print_synchronization(console, beside=_beside(rows))
    console.print(f"{rows[0][0].workload.name}. Times: {_profile(rows)}. Simulated, not run.")
    print_cautions(console, [(point.workload, point.cluster) for point, _ in rows])
    if csv_path is not None:
        console.print(f"Table: {csv_path}", soft_wrap=True)


def _gpu_hours(figures: "Figures", *, samples: float) -> float:
    """Give what so many samples cost: the figure by which clusters of unequal size compare."""
    iterations = samples / (figures.samples_per_s * figures.iteration_s)
    return iterations * figures.gpu_hours_per_iteration


def _beside(rows: "Rows") -> bool:
    """Say whether gradients synchronize beside the backward: at all points, or at none."""
    return any(point.overlap_sync for point, _ in rows)


def _profile(rows: "Rows") -> str:
    return next((result.profile for _, result in rows if result.profile), "")
