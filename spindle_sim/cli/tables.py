"""Results as a person reads them in the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spindle_sim.cli.comparison import Outcome, Result
from spindle_sim.cli.console import new_table
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.traits import num_stages, plan_note
from spindle_sim.units import counted, format_bit_rate, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from spindle_sim.cluster import Cluster
    from spindle_sim.workload import Workload

__all__ = [
    "excess",
    "print_cautions",
    "print_idle",
    "print_inputs",
    "print_note",
    "print_outcomes",
    "print_synchronization",
    "print_trust",
]

_BASELINE = "seq"
_LONG_S = 10.0
_LEAST_SHARE = 0.001  # of all device time: less explains nothing


def print_inputs(console: "Console", workload: "Workload", cluster: "Cluster") -> None:
    """Print what is trained on what."""
    console.print(
        f"{workload.name}: {counted(len(workload.tasks), 'task')}"
        f" ({', '.join(f'{task.name} x{task.batch_size}' for task in workload.tasks)}),"
        f" {counted(workload.parameters, 'parameter')}",
        soft_wrap=True,
    )
    console.print(
        f"{cluster.name}: {cluster.num_nodes} x {cluster.devices_per_node} {cluster.gpu.name},"
        f" {cluster.nics_per_node} x {format_bit_rate(cluster.nic_bandwidth_bytes_per_s)}"
        f" network card{'s' if cluster.nics_per_node > 1 else ''} a node"
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
    # One reference for all rows: each plan's own optimum grows with what it recomputes, and with
    # its micro-batches, on which devices are less busy.
    optimum_s = min((result.plan.optimum_s for result in results.values()), default=0.0)
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
            f"{times_s[_BASELINE] / time_s:.2f}x" if _BASELINE in times_s and time_s else "-",
            f"{result.summary.samples_per_s:.1f}",
            f"{result.summary.utilization:.1%}",
            excess(result.compute_s, optimum_s),
            format_bytes(result.summary.peak_memory_bytes),
            f"{num_stages(result.plan)}",
            _milliseconds(outcome.planning_s),
            style="bold" if best else None,
        )
    print_table(console, table)
    _print_breakdown(console, results)
    console.print(
        "* fastest. Util.: model FLOP/s of the peak. Over opt.: the plan's compute makespan over"
        " the Theorem 1 optimum, summed over MetaLevels (the least of these plans'),"
        " which grows with recomputation and micro-batches; MetaLevels may overlap, so that a plan"
        " can be below it. Stages: slices planned to run side by side, of all rounds; of a pipeline"
        " what one rank runs, so that they compare only between plans of one kind.",
        soft_wrap=True,
    )
    for strategy, result in results.items():
        print_note(console, strategy, result)
    for outcome in outcomes:
        if outcome.error is not None:
            for problem in outcome.error.problems:
                console.print(f"{outcome.strategy}: no plan: {problem}", soft_wrap=True)


def excess(compute_s: float, optimum_s: float) -> str:
    """Give how much longer the compute is than the optimum; "-" where nothing is computed."""
    return f"{compute_s / optimum_s - 1:+.1%}" if optimum_s else "-"


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


def print_synchronization(console: "Console", *, beside: bool) -> None:
    """Print when gradients synchronize, which can make a tenth of an iteration."""
    console.print(
        "Gradients synchronize beside the backward."
        if beside
        else "Gradients synchronize after the backward; with --overlap-sync (of `plan`, too) beside"
        " it, as `compare` of all strategies has it.",
        soft_wrap=True,
    )


def print_cautions(console: "Console", inputs: "Iterable[tuple[Workload, Cluster]]") -> None:
    """Print what about these inputs a user may not expect: odd batches, GPUs nobody measured."""
    from spindle_sim.estimate import Estimator
    from spindle_sim.metrics import batch_notes

    notes: dict[str, None] = {}  # each once, in order
    for workload, cluster in inputs:
        caution = Estimator(cluster).caution
        notes |= dict.fromkeys((*batch_notes(workload, cluster), *([caution] if caution else [])))
    for note in notes:
        console.print(f"Note: {note}", soft_wrap=True)


def _print_breakdown(console: "Console", results: dict[str, Result]) -> None:
    if not results:
        return
    table = new_table(
        "An average device's iteration",
        "Strategy",
        "Forward+backward",
        "Synchronization",
        "Optimizer",
        "Send/receive",
        "Idle",
    )
    for name, result in results.items():
        summary = result.summary
        parts_s = (
            summary.forward_backward_s,
            summary.sync_s - summary.optimizer_s,
            summary.optimizer_s,
            summary.send_recv_s,
            summary.idle_s,
        )
        table.add_row(
            name,
            *(_with_share(part_s, summary.iteration_s) for part_s in parts_s),
        )
    print_table(console, table)


def print_idle(console: "Console", strategy: str, result: Result) -> None:
    """Print the top reasons for the idle time of one strategy."""
    reasons = [reason for reason in result.idle_reasons if reason.share >= _LEAST_SHARE]
    if not reasons:
        return
    console.print(f"Why devices idle under {strategy} (of all device time):")
    for reason in reasons:
        console.print(f"  {reason.share:.1%}  {reason.text}", soft_wrap=True)


def _with_share(part_s: float, iteration_s: float) -> str:
    share = part_s / iteration_s if iteration_s else 0.0
    return f"{_milliseconds(part_s)} ({share:.0%})"


def _milliseconds(duration_s: float) -> str:
    """Give a duration with one decimal, so that a column's figures can be compared at a glance.

    From ten seconds on in seconds.
    """
    return f"{duration_s:,.2f} s" if duration_s >= _LONG_S else f"{1e3 * duration_s:,.1f} ms"
