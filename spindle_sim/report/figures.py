"""The report's tables: what each strategy reached, and why devices idled, as escaped HTML."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from spindle_sim.metrics import Summary, idle_reasons
from spindle_sim.plan import Plan, schedule
from spindle_sim.report.run import Run
from spindle_sim.units import format_bandwidth, format_bytes, format_duration

__all__ = ["facts_table", "idle_table", "strategy_table"]

Pair = tuple[Run, Summary]
_COLUMNS: dict[str, Callable[[Run, Summary], str]] = {
    "Samples/s": lambda _, s: f"{s.samples_per_s:.4g}",
    "Model TFLOP/s": lambda _, s: f"{s.model_flops_per_s / 1e12:.4g}",
    "Utilization": lambda _, s: f"{100 * s.utilization:.1f} %",
    "Forward + backward": lambda _, s: format_duration(s.forward_backward_s),
    "Synchronization": lambda _, s: format_duration(s.sync_s),
    "Send/receive": lambda _, s: format_duration(s.send_recv_s),
    "Idle": lambda _, s: format_duration(s.idle_s),
    "Peak memory": lambda _, s: format_bytes(s.peak_memory_bytes),
    "GPU-hours / 1000 iterations": lambda _, s: f"{s.gpu_hours_per_1000_iterations:.4g}",
}


def strategy_table(pairs: Sequence[Pair]) -> str:
    """Give the table of all strategies, the fastest marked."""
    best_s = min(summary.iteration_s for _, summary in pairs)
    head = ["Strategy", "Iteration", "Against the best", *_COLUMNS]
    head += ["Compute makespan", "Optimum (Theorem 1)", "Stages", "Slices"]
    rows = []
    for run, summary in pairs:
        is_best = summary.iteration_s == best_s
        ratio = summary.iteration_s / best_s if best_s else 1.0
        cells = [
            run.name + (" (best)" if is_best else ""),
            format_duration(summary.iteration_s),
            "1.00 x" if is_best else f"{ratio:.2f} x",
            *(give(run, summary) for give in _COLUMNS.values()),
            format_duration(schedule(run.plan).makespan_s),
            format_duration(run.plan.optimum_s),
            str(len({(item.round, item.stage) for item in run.plan.slices})),
            str(len(run.plan.slices)),
        ]
        rows.append(cells)
    return _table(head, rows, caption="Figures of one iteration, for each strategy")


def facts_table(plan: Plan, backend: str) -> str:
    """Give what was trained, on what, and how the numbers came about."""
    workload, cluster = plan.workload, plan.cluster
    facts = {
        "Workload": f"{workload.name}: {len(workload.tasks)} tasks"
        f" ({', '.join(task.name for task in workload.tasks)}),"
        f" {workload.parameters / 1e9:.4g} billion parameters",
        "Batches": ", ".join(f"{task.name} {task.batch_size}" for task in workload.tasks),
        "Cluster": f"{cluster.name}: {cluster.num_nodes} x {cluster.devices_per_node}"
        f" {cluster.gpu.name} ({format_bytes(cluster.gpu.memory_bytes)}), {cluster.nics_per_node}"
        f" NIC a node at {format_bandwidth(cluster.nic_bandwidth_bytes_per_s)},"
        f" oversubscription {cluster.oversubscription:g}",
        "Times from": plan.profile or "not stated",
        "Ran on": backend,
        "Seed": str(plan.seed),
        "Made by": f"{plan.tool}, plan format {plan.format_version}",
        "Note": workload.note,
    }
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>\n'
        for name, text in facts.items()
        if text
    )
    return f'<table class="facts">\n{rows}</table>'


def idle_table(pairs: Sequence[Pair]) -> str:
    """Give the top reasons for idle time of each strategy."""
    rows = [
        [
            run.name,
            reason.text,
            f"{100 * reason.share:.1f} %",
            format_duration(reason.device_seconds),
        ]
        for run, _ in pairs
        for reason in idle_reasons(run.plan, run.timeline)
    ]
    head = ["Strategy", "Reason", "Share of all device time", "Summed over devices"]
    return _table(head, rows, caption="Why devices idle: the longest reasons first")


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{escape(cells[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
