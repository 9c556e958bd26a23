"""`spindle compare`: the main job. How long is an iteration under each strategy, and why?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.comparison import Comparison, Outcome, SimulationOptions, compare_strategies
from spindle_sim.cli.console import print_json, progress, stdout_console
from spindle_sim.cli.inputs import check_placement, read_profile, read_strategies, read_workload
from spindle_sim.cli.options import (
    STRATEGY_NAMES,
    BatchScale,
    ClusterName,
    Jitter,
    JsonOutput,
    NicBandwidth,
    NicsPerNode,
    OverlapSync,
    Oversubscription,
    Placement,
    Profile,
    Report,
    Seed,
    Tasks,
    Tiny,
)
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.errors import InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare"]

_DEFAULT_WORKLOAD = "multitask-clip"
_DEFAULT_TASKS = "4"


def compare(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="A built-in workload (see `spindle workloads`) or a YAML file;"
            " without one, the first 4 tasks of multitask-clip.",
            show_default=False,
        ),
    ] = None,
    *,
    tasks: Tasks = None,
    tiny: Tiny = False,
    cluster: ClusterName = "a800:2x8",
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"Strategies to compare (comma-separated), of {STRATEGY_NAMES}; all by default.",
            show_default=False,
        ),
    ] = None,
    batch_scale: BatchScale = 1.0,
    placement: Placement = "spindle",
    profile: Profile = None,
    report: Report = None,
    json: JsonOutput = False,
    seed: Seed = 0,
    jitter: Jitter = 0.0,
    overlap_sync: OverlapSync = False,
    nics_per_node: NicsPerNode = None,
    nic_bandwidth: NicBandwidth = None,
    oversubscription: Oversubscription = None,
) -> None:
    """Simulate one training iteration under each strategy, and say which is fastest and why."""
    check_outputs([workload, cluster, profile], report=report)
    from spindle_sim.cluster import parse_cluster

    tasks = _DEFAULT_TASKS if workload is None and tasks is None else tasks
    comparison = Comparison(
        workload=read_workload(
            _DEFAULT_WORKLOAD if workload is None else workload, tasks, batch_scale, tiny=tiny
        ),
        cluster=parse_cluster(
            cluster,
            nics_per_node=nics_per_node,
            nic_bandwidth=nic_bandwidth,
            oversubscription=oversubscription,
        ),
        strategies=read_strategies(strategies),
        profile=read_profile(profile),
        placement=check_placement(placement),
        options=SimulationOptions(overlap_sync=overlap_sync, jitter=jitter, seed=seed),
    )
    outcomes = _work(comparison, report)
    if json:
        _print_json(comparison, outcomes)
    else:
        _print(comparison, outcomes, report)
    _require_one(outcomes)


def _work(comparison: Comparison, report: str | None) -> tuple[Outcome, ...]:
    with progress(comparison.num_steps + (report is not None)) as advance:
        outcomes = compare_strategies(comparison, advance)
        if report is not None:
            advance("writing the report")
            _write_report(report, comparison, outcomes)
    return outcomes


def _write_report(path: str, comparison: Comparison, outcomes: "Sequence[Outcome]") -> None:
    from spindle_sim.report import Run, scaling_curves, write_report

    runs = [
        Run(plan=outcome.result.plan, timeline=outcome.result.timeline)
        for outcome in outcomes
        if outcome.result is not None
    ]
    if runs:
        curves = scaling_curves(runs[0].plan, comparison.profile)
        write_report(Path(path), runs, curves=curves)


def _print_json(comparison: Comparison, outcomes: "Sequence[Outcome]") -> None:
    from spindle_sim.cli.rows import cluster_row, outcome_row, provenance, workload_row

    print_json(
        {
            "workload": workload_row(comparison.workload),
            "cluster": cluster_row(comparison.cluster),
            "provenance": provenance(_profile(outcomes), comparison.simulation),
            "strategies": [outcome_row(outcome) for outcome in outcomes],
        }
    )


def _print(comparison: Comparison, outcomes: "Sequence[Outcome]", report: str | None) -> None:
    from spindle_sim.cli.tables import (
        print_cautions,
        print_idle,
        print_inputs,
        print_outcomes,
        print_synchronization,
        print_trust,
    )

    console = stdout_console()
    print_inputs(console, comparison.workload, comparison.cluster)
    print_outcomes(console, outcomes)
    feasible = [(o.strategy, o.result) for o in outcomes if o.result is not None]
    if comparison.simulation.overlap_sync and not comparison.options.overlap_sync:
        console.print(
            "All strategies synchronize gradients beside the backward, since some of them do"
            " always; name others with --strategies to have it apart.",
            soft_wrap=True,
        )
    elif feasible:
        print_synchronization(console, beside=comparison.simulation.overlap_sync)
    if feasible:
        strategy, result = min(feasible, key=lambda pair: pair[1].summary.iteration_s)
        print_idle(console, strategy, result)
        print_trust(console, _profile(outcomes), comparison.workload)
        print_cautions(console, [(comparison.workload, comparison.cluster)])
        if report is not None:
            console.print(f"Report: {report}", soft_wrap=True)


def _profile(outcomes: "Sequence[Outcome]") -> str:
    return next((o.result.plan.profile for o in outcomes if o.result is not None), "")


def _require_one(outcomes: "Sequence[Outcome]") -> None:
    """End with exit code 4 where no strategy has a feasible plan; the reasons are printed by then.

    Raises:
        InfeasibleError: no strategy has one.
    """
    if all(outcome.result is None for outcome in outcomes):
        names = ", ".join(outcome.strategy for outcome in outcomes)
        raise InfeasibleError(f"no feasible plan under any of: {names}")
