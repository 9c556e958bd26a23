"""Results as a person reads them in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spindle_sim.cli.comparison import Outcome, Result
from spindle_sim.cli.console import new_table
from spindle_sim.cli.traits import num_stages, plan_note
from spindle_sim.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from spindle_sim.cluster import Cluster
    from spindle_sim.workload import Workload

__all__ = ["print_idle", "print_inputs", "print_note", "print_outcomes", "print_trust"]

_BASELINE = "seq"
_LEAST_SHARE = 0.001  # of all device time: less explains nothing


def print_inputs(console: "Console", workload: "Workload", cluster: "Cluster") -> None:
    """Print what is trained on what."""
    console.print(
        f"{workload.name}: {len(workload.tasks)} tasks"
        f" ({', '.join(f'{task.name} x{task.batch_size}' for task in workload.tasks)}),"
        f" {workload.parameters:,} parameters",
        soft_wrap=True,
    )
    console.print(
        f"{cluster.name}: {cluster.num_nodes} x {cluster.devices_per_node} {cluster.gpu.name},"
        f" {cluster.nics_per_node} x"
        f" {format_bandwidth(cluster.nic_bandwidth_bytes_per_s)} network cards a node"
        + (
            f", fabric oversubscribed {cluster.oversubscription:g}:1"
            if cluster.oversubscription > 1
            else ""
        ),
        soft_wrap=True,
    )


def print_outcomes(console: "Console", outcomes: Sequence[Outcome]) -> None:
    """Print the comparison: one line a strategy, the fastest marked, then where its time goes."""
    results = {o.strategy: o.result for o in outcomes if o.result is not None}
    times_s = {name: result.summary.iteration_s for name, result in results.items()}
    best_s = min(times_s.values(), default=0.0)
    table = new_table(
        "",
        "Strategy",
        "Iteration",
        f"vs {_BASELINE}",
        "Samples/s",
        "Util.",
        "Over opt.",
        "Memory",
        "Stages",
        "Planning",
    )
    for outcome in outcomes:
        if outcome.result is None:
            table.add_row(outcome.strategy, "no plan")
            continue
        result, time_s = outcome.result, times_s[outcome.strategy]
        best = time_s == best_s
        table.add_row(
            f"{outcome.strategy} *" if best else outcome.strategy,
            _milliseconds(time_s),
            f"{times_s[_BASELINE] / time_s:.2f}x" if _BASELINE in times_s else "-",
            f"{result.summary.samples_per_s:.1f}",
            f"{result.summary.utilization:.1%}",
            f"{result.compute_s / result.plan.optimum_s - 1:+.1%}",
            format_bytes(result.summary.peak_memory_bytes),
            f"{num_stages(result.plan)}",
            _milliseconds(outcome.planning_s),
            style="bold" if best else None,
        )
    console.print(table)
    _print_breakdown(console, results)
    console.print(
        "* fastest. Util.: model FLOP/s of the peak. Over opt.: the plan's compute makespan over"
        " the theoretical optimum.",
        soft_wrap=True,
    )
    for strategy, result in results.items():
        print_note(console, strategy, result)
    for outcome in outcomes:
        if outcome.error is not None:
            for problem in outcome.error.problems:
                console.print(f"{outcome.strategy}: no plan: {problem}", soft_wrap=True)


def print_note(console: "Console", strategy: str, result: Result) -> None:
    """Print what else a plan does that isn't in the table, where it does."""
    note = plan_note(result.plan)
    if note:
        console.print(f"{strategy}: {note}", soft_wrap=True)


def print_trust(console: "Console", profile: str, workload: "Workload") -> None:
    """Print where the figures come from and how far to trust them."""
    console.print(f"Times: {profile}. Simulated, not run.", soft_wrap=True)
    if workload.note:
        console.print(f"Workload: {workload.note}", soft_wrap=True)


def _print_breakdown(console: "Console", results: dict[str, Result]) -> None:
    if not results:
        return
    table = new_table(
        "An average device's iteration",
        "Strategy",
        "Forward+backward",
        "Synchronization",
        "Send/receive",
        "Idle",
    )
    for name, result in results.items():
        summary = result.summary
        parts_s = (
            summary.forward_backward_s,
            summary.sync_s,
            summary.send_recv_s,
            summary.idle_s,
        )
        table.add_row(
            name,
            *(f"{_milliseconds(part)} ({part / summary.iteration_s:.0%})" for part in parts_s),
        )
    console.print(table)


def print_idle(console: "Console", strategy: str, result: Result) -> None:
    """Print the top reasons for the idle time of one strategy."""
    reasons = [reason for reason in result.idle_reasons if reason.share >= _LEAST_SHARE]
    if not reasons:
        return
    console.print(f"Why devices idle under {strategy} (of all device time):")
    for reason in reasons:
        console.print(f"  {reason.share:.1%}  {reason.text}", soft_wrap=True)


def _milliseconds(duration_s: float) -> str:
    """Give a duration with one decimal, so that a column's figures can be compared at a glance."""
    return f"{1e3 * duration_s:,.1f} ms"
