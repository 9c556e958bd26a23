"""Every strategy on the paper's workloads and cluster sizes: the README's main table.

    python -m benchmarks.evaluate [--json] [--workloads ofasys,...] [--clusters a800:4x8,...]
        [--batch-scale 0.5] [--overlap-sync]

For each case it prints the simulated iteration time of every strategy, Spindle's speed-up over seq
and over the best other one, and how far its compute makespan is over the Theorem 1 optimum, summed
over MetaLevels: in the rate form that the planner uses (no schedule that keeps MetaLevels apart
beats it) and by equation (11) as printed. Where MetaLevels overlap, the makespan can be below it.
"""

import argparse
import json
import sys
from typing import Any

from spindle_sim.cli.comparison import (
    Comparison,
    Outcome,
    SimulationOptions,
    compare_strategies,
)
from spindle_sim.cluster import parse_cluster
from spindle_sim.planner import STRATEGIES
from spindle_sim.planner.make import equation_11_s
from spindle_sim.workload import builtin_workload

CASES = (("multitask-clip", (4, 7, 10)), ("ofasys", (4, 7)), ("qwen-val", (3,)))
CLUSTERS = ("a800:1x8", "a800:2x8", "a800:4x8", "a800:8x8")
EXIT_NOT_MET = 1


def run_case(
    workload_name: str, tasks: int, cluster_name: str, *, batch_scale: float, overlap_sync: bool
) -> dict[str, Any]:
    """Plan and simulate one workload on one cluster with every strategy."""
    cluster = parse_cluster(cluster_name)
    comparison = Comparison(
        workload=builtin_workload(workload_name)
        .with_first_tasks(tasks)
        .with_batch_scale(batch_scale),
        cluster=cluster,
        strategies=tuple(STRATEGIES),
        options=SimulationOptions(overlap_sync=overlap_sync),
    )
    rows = {
        outcome.strategy: _row(outcome)
        for outcome in compare_strategies(comparison, lambda _: None)
    }
    return {
        "workload": workload_name,
        "tasks": tasks,
        "devices": cluster.num_devices,
        "strategies": rows,
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    if outcome.result is None:
        return {"error": str(outcome.error)}
    plan, summary = outcome.result.plan, outcome.result.summary
    return {
        "iteration_s": summary.iteration_s,
        "compute_s": outcome.result.compute_s,
        "optimum_s": plan.optimum_s,
        "equation_11_s": equation_11_s(plan),
        "sync_s": summary.sync_s,
        "send_recv_s": summary.send_recv_s,
        "idle_s": summary.idle_s,
        "forward_backward_s": summary.forward_backward_s,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "rounds": 1 + max(item.round for item in plan.slices),
        "recomputed": len({s.metaop for s in plan.slices if s.recompute}),
        "tp": max(item.tp for item in plan.slices),
        "zero1": plan.zero1,
        "slices": len(plan.slices),
        "planning_s": outcome.planning_s,
    }


COLUMNS = (
    "workload",
    "GPUs",
    *STRATEGIES,
    "vs seq",
    "vs best other",
    "over Theorem 1",
    "over eq. 11",
)
COLUMNS += ("sync", "send/receive", "settings")
HEADER = f"| {' | '.join(COLUMNS)} |\n| --- |" + " ---: |" * (len(COLUMNS) - 2) + " --- |"


def print_case(case: dict[str, Any]) -> bool:
    """Print one row; say whether Spindle is at or below every other strategy."""
    rows = case["strategies"]
    times = {name: row.get("iteration_s", float("inf")) for name, row in rows.items()}
    ours = rows["spindle"]
    best_s, best = min((t, name) for name, t in times.items() if name != "spindle")
    met = bool(times["spindle"] <= best_s)
    cells = [f"{case['workload']}, {case['tasks']} tasks", str(case["devices"])]
    cells += [f"{1e3 * times[name]:.1f}" for name in times]
    cells += [
        f"{times['seq'] / times['spindle']:.2f}x",
        f"{best_s / times['spindle']:.3f}x ({best})" + ("" if met else " **slower**"),
        f"{ours['compute_s'] / ours['optimum_s'] - 1:+.1%}",
        f"{ours['compute_s'] / ours['equation_11_s'] - 1:+.1%}",
        f"{ours['sync_s'] / times['spindle']:.1%}",
        f"{ours['send_recv_s'] / times['spindle']:.1%}",
        _settings(ours),
    ]
    print("| " + " | ".join(cells) + " |", flush=True)
    return met


def _settings(row: dict[str, Any]) -> str:
    said = []
    if row["rounds"] > 1:
        said.append(f"{row['rounds']} rounds")
    if row["recomputed"]:
        said.append(f"{row['recomputed']} MetaOps recomputed")
    if row["tp"] > 1:
        said.append(f"tp {row['tp']}")
    if row["zero1"]:
        said.append("ZeRO-1")
    return ", ".join(said)


def main() -> int:
    """Run all cases; exit 1 where Spindle isn't at or below every other strategy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workloads", default=",".join(name for name, _ in CASES))
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--batch-scale", type=float, default=1.0)
    parser.add_argument("--overlap-sync", action="store_true", help="with the backward")
    arguments = parser.parse_args()
    chosen = arguments.workloads.split(",")
    if not arguments.json:
        print(HEADER, flush=True)
    cases: list[dict[str, Any]] = []
    met: list[bool] = []
    for name, counts in CASES:
        for tasks in counts if name in chosen else ():
            for cluster in arguments.clusters.split(","):
                case = run_case(
                    name,
                    tasks,
                    cluster,
                    batch_scale=arguments.batch_scale,
                    overlap_sync=arguments.overlap_sync,
                )
                cases.append(case)
                if not arguments.json:
                    met.append(print_case(case))
    if arguments.json:
        json.dump({"cases": cases}, sys.stdout, indent=1)
        return 0
    print(f"\nSpindle is at or below every other strategy in {sum(met)} of {len(met)} cases.")
    print(
        f"Times are milliseconds of one simulated iteration; batch scale {arguments.batch_scale}."
    )
    return 0 if all(met) else EXIT_NOT_MET


if __name__ == "__main__":
    sys.exit(main())
