"""`spindle curves`: the scaling curve T_m(n) of every MetaOp (section 3.2)."""

from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import new_table, print_json, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.inputs import read_profile, read_workload
from spindle_sim.cli.options import (
    BatchScale,
    ClusterName,
    JsonOutput,
    NicBandwidth,
    NicsPerNode,
    Oversubscription,
    Profile,
    Report,
    Tasks,
    Tiny,
    WorkloadName,
    integer_parser,
)
from spindle_sim.cli.outputs import check_outputs

if TYPE_CHECKING:
    from spindle_sim.estimate import ScalingCurve
    from spindle_sim.planner.metagraph import MetaNode

__all__ = ["curves"]


def curves(
    workload: WorkloadName,
    *,
    tasks: Tasks = None,
    tiny: Tiny = False,
    cluster: ClusterName = "a800:2x8",
    batch_scale: BatchScale = 1.0,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            metavar="DEGREE",
            parser=integer_parser("--tensor-parallel", least=1),
            help="Tensor-parallel degree of every operator.",
        ),
    ] = 1,
    profile: Profile = None,
    nics_per_node: NicsPerNode = None,
    nic_bandwidth: NicBandwidth = None,
    oversubscription: Oversubscription = None,
    report: Report = None,
    json: JsonOutput = False,
) -> None:
    """Print T_m(n): the time of one operator of each MetaOp on n devices, forward and backward."""
    check_outputs([workload, cluster, profile], report=report)
    from spindle_sim.cluster import parse_cluster
    from spindle_sim.estimate import Estimator
    from spindle_sim.planner.contract import contract

    graph = contract(read_workload(workload, tasks, batch_scale, tiny=tiny))
    estimator = Estimator(
        parse_cluster(
            cluster,
            nics_per_node=nics_per_node,
            nic_bandwidth=nic_bandwidth,
            oversubscription=oversubscription,
        ),
        read_profile(profile),
    )
    rows = [
        (
            node,
            estimator.curve(node.operator, node.metaop.backward, tp=tensor_parallel),
        )
        for node in graph.nodes.values()
    ]
    if report is not None:
        _write_report(report, rows, f"{workload} on {cluster}", estimator.profile_name)
    if json:
        print_json(
            {
                "workload": workload,
                "cluster": cluster,
                "profile": estimator.profile_name,
                "curves": [_row(node, curve) for node, curve in rows],
            }
        )
        return
    _print(rows, estimator.profile_name)
    if report is not None:
        print(f"Report: {report}")


def _write_report(
    path: str, rows: list[tuple["MetaNode", "ScalingCurve"]], title: str, profile_name: str
) -> None:
    from spindle_sim.report import Curve, write_curves

    drawn = [
        Curve(name=node.metaop.id, points=tuple((n, curve.time_s(n)) for n in curve.allocations))
        for node, curve in rows
        if curve.allocations
    ]
    write_curves(path, drawn, title=title, note=f"Times: {profile_name}")


def _row(node: "MetaNode", curve: "ScalingCurve") -> dict[str, object]:
    return {
        "metaop": node.metaop.id,
        "num_ops": node.metaop.num_ops,
        "batch": node.metaop.batch,
        "level": node.metaop.level,
        "backward": node.metaop.backward.value,
        "tp": curve.tp,
        "points": [
            {"devices": n, "forward_s": curve.forward_s(n), "backward_s": curve.backward_s(n)}
            for n in curve.allocations
        ],
    }


def _print(rows: list[tuple["MetaNode", "ScalingCurve"]], profile_name: str) -> None:
    console = stdout_console()
    shown = sorted({n for _, curve in rows for n in curve.allocations if n & (n - 1) == 0})
    table = new_table(
        "Milliseconds of one operator, forward and backward, on n devices",
        "MetaOp",
        "Operators",
        *(f"n={n}" for n in shown),
        "Speed-up",
    )
    for node, curve in rows:
        times_s = {n: curve.time_s(n) for n in curve.allocations}
        cells = [f"{1e3 * times_s[n]:.3f}" if n in times_s else "-" for n in shown]
        gain = times_s[min(times_s)] / min(times_s.values()) if times_s else None
        table.add_row(
            node.metaop.id,
            f"{node.metaop.num_ops}",
            *cells,
            f"{gain:.1f}x" if gain is not None else "-",
        )
    print_table(console, table)
    console.print(f"Times: {profile_name}. Only powers of two are shown; --json gives every n.")
