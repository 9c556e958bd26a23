"""`spindle simulate`: replay a plan file, whoever wrote it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.comparison import Result, SimulationOptions, simulate_plan, summed_up
from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.inputs import read_profile
from spindle_sim.cli.options import Jitter, JsonOutput, OverlapSync, PlanFile, Report, Seed
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.cli.validate import load_valid_plan
from spindle_sim.errors import UsageError

if TYPE_CHECKING:
    from spindle_sim.estimate import Profile
    from spindle_sim.plan import Plan

__all__ = ["simulate"]

_OVERLAPPING_STAGE = 2  # from this ZeRO stage on gradients leave during the backward in any case

CurvesProfile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="With --report: the profile that the plan was made from, for scaling curves.",
        show_default=False,
    ),
]


def simulate(
    plan: PlanFile,
    *,
    report: Report = None,
    profile: CurvesProfile = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a trace for the Perfetto UI (Chrome JSON).",
            show_default=False,
        ),
    ] = None,
    json: JsonOutput = False,
    seed: Seed = 0,
    jitter: Jitter = 0.0,
    overlap_sync: OverlapSync = False,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="`programs` runs what each rank is told to do, as `spindle run` compiles it.",
        ),
    ] = "simulator",
) -> None:
    """Simulate one iteration of a plan."""
    check_outputs([plan, profile], report=report, trace=trace)
    if profile is not None and report is None:
        raise UsageError(
            f"--profile {profile:.200}: is for the report's scaling curves; add --report FILE, or"
            " leave it out"
        )
    measured = read_profile(profile)
    options = SimulationOptions(overlap_sync=overlap_sync, jitter=jitter, seed=seed)
    with progress(2 + (report is not None) + (trace is not None)) as advance:
        advance("reading the plan")
        loaded = load_valid_plan(plan)
        if measured is not None:
            _check_profile(loaded, measured)
        advance("simulating")
        result = _simulated(loaded, options, backend)
        if report is not None:
            advance("writing the report")
            _write_report(report, result, measured)
        if trace is not None:
            advance("writing the trace")
            _write_trace(trace, result)
    # A plan that was made for it is simulated so without the option.
    options = replace(options, overlap_sync=overlap_sync or loaded.overlap_sync)
    if json:
        _print_json(loaded, result, options)
        return
    _print(loaded, result, options)
    for name, path in (("Report", report), ("Trace", trace)):
        if path is not None:
            print(f"{name}: {path}")


def _simulated(plan: "Plan", options: SimulationOptions, backend: str) -> Result:
    """Simulate, or run another backend that does.

    Raises:
        UsageError: the backend is none, or executes plans, or knows no such option.
    """
    if backend == "simulator":
        return simulate_plan(plan, options)
    from spindle_sim.backend import Executor, find_backend

    found = find_backend(backend)
    if isinstance(found, Executor):
        raise UsageError(f"--backend {backend}: executes plans; use `spindle run`")
    if options.jitter or options.overlap_sync:
        raise UsageError(f"--backend {backend}: takes neither --jitter nor --overlap-sync")
    return summed_up(plan, found.run(plan))


def _check_profile(plan: "Plan", profile: "Profile") -> None:
    """Make sure that the plan's times came from the profile.

    Raises:
        UsageError: they came from elsewhere.
    """
    from spindle_sim.estimate import Estimator

    if Estimator(plan.cluster, profile).profile_hash != plan.inputs.profile:
        raise UsageError(
            f"--profile: the plan was made with other times ({plan.profile});"
            " plan again with this profile, or leave it away"
        )


def _write_report(path: str, result: Result, profile: "Profile | None") -> None:
    from spindle_sim.report import Run, scaling_curves, write_report

    write_report(
        Path(path),
        [Run(plan=result.plan, timeline=result.timeline)],
        curves=scaling_curves(result.plan, profile),
    )


def _write_trace(path: str, result: Result) -> None:
    from spindle_sim.report import write_trace

    write_trace(Path(path), result.plan, result.timeline)


def _print_json(plan: "Plan", result: Result, options: SimulationOptions) -> None:
    from spindle_sim.cli.rows import cluster_row, provenance, result_row, workload_row

    print_json(
        {
            "strategy": plan.strategy,
            **result_row(result),
            "workload": workload_row(plan.workload),
            "cluster": cluster_row(plan.cluster),
            "provenance": provenance(plan.profile, options),
        }
    )


def _print(plan: "Plan", result: Result, options: SimulationOptions) -> None:
    from spindle_sim.cli.tables import (
        excess,
        print_cautions,
        print_idle,
        print_inputs,
        print_note,
        print_synchronization,
        print_trust,
    )
    from spindle_sim.units import format_bytes, format_duration

    console = stdout_console()
    print_inputs(console, plan.workload, plan.cluster)
    summary = result.summary
    table = new_table(f"One iteration under {plan.strategy}", "", "")
    for name, value in (
        ("Iteration", format_duration(summary.iteration_s)),
        ("Forward+backward", format_duration(summary.forward_backward_s)),
        ("Synchronization", format_duration(summary.sync_s - summary.optimizer_s)),
        ("Optimizer", format_duration(summary.optimizer_s)),
        ("Send/receive", format_duration(summary.send_recv_s)),
        ("Idle", format_duration(summary.idle_s)),
        ("Samples/s", f"{summary.samples_per_s:.1f}"),
        ("Model PFLOP/s", f"{summary.model_flops_per_s / 1e15:.3f}"),
        ("Utilization", f"{summary.utilization:.1%}"),
        ("Compute over optimum", excess(result.compute_s, plan.optimum_s)),
        ("Peak memory of a device", format_bytes(summary.peak_memory_bytes)),
        ("GPU-hours", f"{summary.gpu_hours_per_iteration:.6f}"),
    ):
        table.add_row(name, value)
    print_table(console, table)
    print_note(console, plan.strategy, result)
    if plan.zero_stage < _OVERLAPPING_STAGE:
        print_synchronization(console, beside=options.overlap_sync)
    print_idle(console, plan.strategy, result)
    print_trust(console, plan.profile, plan.workload)
    print_cautions(console, [(plan.workload, plan.cluster)])
