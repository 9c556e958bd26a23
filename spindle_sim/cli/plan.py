"""`spindle plan`: plan a workload under one strategy and write the plan file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from spindle_sim.cli.inputs import check_placement, read_profile, read_strategies, read_workload
from spindle_sim.cli.options import (
    STRATEGY_NAMES,
    BatchScale,
    ClusterName,
    NicBandwidth,
    NicsPerNode,
    OverlapSync,
    Oversubscription,
    Placement,
    Profile,
    Seed,
    Tasks,
    Tiny,
    WorkloadName,
)
from spindle_sim.cli.outputs import check_outputs, is_stdout
from spindle_sim.cli.parallelism import parallelism_note
from spindle_sim.errors import UsageError

__all__ = ["plan"]


def plan(
    workload: WorkloadName,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The plan file to write.")
    ],
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help=f"The strategy to plan with: {STRATEGY_NAMES}.")
    ] = "spindle",
    tasks: Tasks = None,
    cluster: ClusterName = "a800:2x8",
    batch_scale: BatchScale = 1.0,
    tiny: Tiny = False,
    placement: Placement = "spindle",
    overlap_sync: OverlapSync = False,
    profile: Profile = None,
    seed: Seed = 0,
    nics_per_node: NicsPerNode = None,
    nic_bandwidth: NicBandwidth = None,
    oversubscription: Oversubscription = None,
) -> None:
    """Plan a workload under one strategy and write the plan file."""
    check_outputs([workload, cluster, profile], output=output)
    strategies = read_strategies(strategy, option="--strategy")
    if len(strategies) != 1:
        raise UsageError(f"--strategy {strategy}: expected one strategy")
    from spindle_sim.cluster import parse_cluster
    from spindle_sim.plan import save_plan
    from spindle_sim.planner import make_plan
    from spindle_sim.units import counted, format_duration

    made = make_plan(
        read_workload(workload, tasks, batch_scale, tiny=tiny),
        parse_cluster(
            cluster,
            nics_per_node=nics_per_node,
            nic_bandwidth=nic_bandwidth,
            oversubscription=oversubscription,
        ),
        strategies[0],
        profile=read_profile(profile),
        placement=check_placement(placement),
        seed=seed,
        overlap_sync=overlap_sync,
    )
    save_plan(made, Path(output))
    tuned = parallelism_note(made)
    print(
        f"{output}: {made.strategy} for {made.workload.name} on {made.cluster.name},"
        f" {counted(len(made.metaops), 'MetaOp')} in {counted(len(made.slices), 'slice')},"
        f" compute optimum {format_duration(made.optimum_s)}{f'; {tuned}' if tuned else ''}",
        file=sys.stderr if is_stdout(output) else sys.stdout,
    )
