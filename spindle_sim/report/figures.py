"""The report's tables: what each strategy reached, and why devices idled, as escaped HTML."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from spindle_sim.metrics import Summary, idle_reasons
from spindle_sim.plan import Plan, schedule
from spindle_sim.report.run import Run
from spindle_sim.units import format_bandwidth, format_bytes, format_duration

__all__ = ["facts_table", "idle_table", "strategy_table"]

Pair = tuple[Run, Summary]
_ROWS: dict[str, Callable[[Run, Summary], str]] = {
    "Samples/s": lambda _, s: f"{s.samples_per_s:.4g}",
    "Model TFLOP/s": lambda _, s: f"{s.model_flops_per_s / 1e12:.4g}",
    "Utilization": lambda _, s: f"{100 * s.utilization:.1f} %",
    "Forward + backward": lambda _, s: format_duration(s.forward_backward_s),
    "Synchronization and step": lambda _, s: format_duration(s.sync_s),
    "Send/receive": lambda _, s: format_duration(s.send_recv_s),
    "Idle": lambda _, s: format_duration(s.idle_s),
    "Peak memory of a device": lambda _, s: format_bytes(s.peak_memory_bytes),
    "GPU-hours of 1000 iterations": lambda _, s: f"{s.gpu_hours_per_1000_iterations:.4g}",
    "Compute makespan": lambda r, _: format_duration(schedule(r.plan).makespan_s),
    "Optimum (Theorem 1)": lambda r, _: format_duration(r.plan.optimum_s),
    "Stages": lambda r, _: str(len({(item.round, item.stage) for item in r.plan.slices})),
    "Slices": lambda r, _: str(len(r.plan.slices)),
}
_LEAST_SHARE = 5e-4  # less of the device time is shown as 0.0 %


def strategy_table(pairs: Sequence[Pair]) -> str:
    """Give the figures of all strategies, a column each, the fastest marked."""
    best_s = min(summary.iteration_s for _, summary in pairs)
    ratios = [summary.iteration_s / best_s if best_s else 1.0 for _, summary in pairs]
    rows = [
        ["Iteration", *(format_duration(summary.iteration_s) for _, summary in pairs)],
        ["Against the fastest", *(f"{ratio:.3f} x" for ratio in ratios)],
    ]
    rows += [
        [name, *(give(run, summary) for run, summary in pairs)] for name, give in _ROWS.items()
    ]
    names = [
        run.name + (" (fastest)" if len(pairs) > 1 and summary.iteration_s == best_s else "")
        for run, summary in pairs
    ]
    caption = "Figures of one iteration; its four parts are times of an average device"
    return _table(["Strategy", *names], rows, caption=caption)


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
        if reason.share >= _LEAST_SHARE
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
