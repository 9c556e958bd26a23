"""The report's tables: what each strategy reached, and why devices idled, as escaped HTML."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from spindle_sim.metrics import Summary, idle_reasons
from spindle_sim.plan import Order, Plan, schedule
from spindle_sim.report.parallelism import parallelism
from spindle_sim.report.run import Run
from spindle_sim.report.traits import (
    most_micro_batches,
    num_rounds,
    num_stages,
    recomputed_metaops,
    tensor_parallel,
)
from spindle_sim.units import counted, format_bit_rate, format_bytes

__all__ = [
    "facts_table",
    "html_table",
    "idle_table",
    "parallelism_table",
    "strategy_table",
    "time_unit",
]

Pair = tuple[Run, Summary]
_BASELINE = "seq"  # what speed-ups are against, as on the command line
_MS, _GIB, _TERA, _PERCENT = 1e3, 2.0**-30, 1e-12, 100.0
_TIMES: dict[str, Callable[[Summary], float]] = {
    "Forward + backward": lambda s: s.forward_backward_s,
    "Synchronization": lambda s: s.sync_s - s.optimizer_s,
    "Optimizer step": lambda s: s.optimizer_s,
    "Send/receive": lambda s: s.send_recv_s,
    "Idle": lambda s: s.idle_s,
}
_RATES: dict[str, Callable[[Summary], float]] = {
    "Samples per second": lambda s: s.samples_per_s,
    "Model TFLOP/s": lambda s: s.model_flops_per_s * _TERA,
    "Utilization (%)": lambda s: s.utilization * _PERCENT,
    "Peak memory of a device (GiB)": lambda s: s.peak_memory_bytes * _GIB,
    "GPU-hours of 1000 iterations": lambda s: s.gpu_hours_per_1000_iterations,
}
_PLAN: dict[str, Callable[[Plan], str]] = {
    "Stages": lambda p: str(num_stages(p)),
    "Slices": lambda p: str(len(p.slices)),
    "Rounds": lambda p: str(num_rounds(p)),
    "Recomputed MetaOps": lambda p: f"{recomputed_metaops(p)} of {len(p.metaops)}",
    "Tensor-parallel degree, highest": lambda p: str(tensor_parallel(p)),
    "Micro-batches of a round, at most": lambda p: str(most_micro_batches(p)),
    "ZeRO stage": lambda p: str(p.zero_stage),
}
_LONG_S = 10.0  # an iteration of so many is shown in seconds
_DECIMALS = ((1, 100.0), (2, 1.0), (3, 0.1))
_LEAST_SHARE = 5e-4  # less of the device time is shown as 0.0 %


def strategy_table(pairs: Sequence[Pair]) -> str:
    """Give the figures of all strategies, a column each, the fastest marked; one unit a row."""
    times_s = [summary.iteration_s for _, summary in pairs]
    unit, scale = time_unit(times_s)
    rows = [[f"Iteration ({unit})", *_figures([scale * time_s for time_s in times_s])]]
    if len(pairs) > 1:
        base = next((i for i, (run, _) in enumerate(pairs) if run.name == _BASELINE), 0)
        gains = [f"{times_s[base] / time_s:.2f}x" if time_s else "-" for time_s in times_s]
        rows.append([f"Speed-up vs {pairs[base][0].name}", *gains])
    rows += [
        [f"{name} ({unit})", *_figures([scale * give(summary) for _, summary in pairs])]
        for name, give in _TIMES.items()
    ]
    rows += [
        [name, *_figures([give(summary) for _, summary in pairs])] for name, give in _RATES.items()
    ]
    makespans_s = [schedule(run.plan).makespan_s for run, _ in pairs]
    optima_s = [run.plan.optimum_s for run, _ in pairs]
    rows += [
        [f"Compute makespan ({unit})", *_figures([scale * time_s for time_s in makespans_s])],
        [f"Optimum, Theorem 1 ({unit})", *_figures([scale * time_s for time_s in optima_s])],
    ]
    rows += [[name, *(give(run.plan) for run, _ in pairs)] for name, give in _PLAN.items()]
    names = [
        run.name + (" (fastest)" if len(pairs) > 1 and time_s == min(times_s) else "")
        for (run, _), time_s in zip(pairs, times_s, strict=True)
    ]
    caption = (
        "Forward + backward to idle are times of an average device and add up to the iteration"
    )
    return html_table(["Strategy", *names], rows, caption=caption) + _explanations(pairs)


def parallelism_table(pairs: Sequence[Pair]) -> str:
    """Give the parallel configuration of each task; "" where no strategy tunes any."""
    rows = [
        [
            run.name,
            one.task,
            f"{one.tensor} x {one.pipeline} x {one.data}",
            one.order or "-",
            one.recomputation or "-",
            str(run.plan.zero_stage),
            str(one.micro_batches),
        ]
        for run, _ in pairs
        for one in parallelism(run.plan)
    ]
    if not rows:
        return ""
    head = ["Strategy", "Task", "Tensor x pipeline x data", "Schedule", "Recomputed"]
    caption = "How each task is trained, where the strategy tunes that"
    return html_table([*head, "ZeRO stage", "Micro-batches"], rows, caption=caption, num_texts=5)


def time_unit(times_s: Sequence[float]) -> tuple[str, float]:
    """Give the unit of times, and how many of it a second has: seconds from ten of them on."""
    return ("s", 1.0) if max(times_s, default=0.0) >= _LONG_S else ("ms", _MS)


def _explanations(pairs: Sequence[Pair]) -> str:
    """Say what the rows about the plans mean, as far as one of them does such a thing."""
    plans = [run.plan for run, _ in pairs]
    found = [
        "Stages are counted over all rounds. Stage: slices planned to run side by side; of a"
        " pipeline, what one rank runs (so that their numbers can't be compared between strategies"
        " with pipelines and without)."
        if any(r.order is Order.ONE_FORWARD_ONE_BACKWARD for plan in plans for r in plan.rounds)
        else "Stage: slices planned to run side by side."
    ]
    if any(num_rounds(plan) > 1 for plan in plans):
        found.append(
            "Round: one forward and backward of some of the tasks; with several, the tasks take"
            " turns and fewer activations are held at a time. Synchronization follows the last."
        )
    if any(recomputed_metaops(plan) for plan in plans):
        found.append("Recomputed: the forward runs again in the backward, to save memory.")
    if any(tensor_parallel(plan) > 1 for plan in plans):
        found.append("Tensor-parallel degree: devices that share each operator's matrices.")
    if any(most_micro_batches(plan) > 1 for plan in plans):
        found.append(
            "Micro-batch: a part of the batch that goes forward and backward by itself. A slice's"
            " start, forward and backward, where stages are listed, are those of the first one."
        )
    if any(r.order is Order.ACCUMULATE for plan in plans for r in plan.rounds):
        found.append(
            "Where gradients accumulate, the optimum is that of a micro-batch, times their number."
        )
    if any(r.order is Order.ONE_FORWARD_ONE_BACKWARD for plan in plans for r in plan.rounds):
        found.append(
            "In a 1F1B round stages are those of a pipeline: a micro-batch goes from one to the"
            " next, and forwards and backwards take turns from the first backward on."
        )
    if any(plan.zero1 for plan in plans):
        found.append(
            "ZeRO: devices that hold the same parameters share out optimizer states (stage 1),"
            " gradients (2) and parameters (3)."
        )
    return f'\n<p class="note">{escape(" ".join(found))}</p>'


def _figures(values: Sequence[float]) -> list[str]:
    """Give a row's values with the same decimals: one, or more where all of them are small."""
    largest = max((abs(value) for value in values), default=0.0)
    decimals = next((d for d, least in _DECIMALS if largest >= least), 5)
    return [f"{value:,.{decimals}f}" for value in values]


def facts_table(plan: Plan, backend: str) -> str:
    """Give what was trained, on what, and how the numbers came about."""
    workload, cluster = plan.workload, plan.cluster
    facts = {
        "Workload": f"{workload.name}: {counted(len(workload.tasks), 'task')}"
        f" ({', '.join(task.name for task in workload.tasks)}),"
        f" {workload.parameters / 1e9:.4g} billion parameters",
        "Batches": ", ".join(f"{task.name} {task.batch_size}" for task in workload.tasks),
        "Cluster": f"{cluster.name}: {cluster.num_nodes} x {cluster.devices_per_node}"
        f" {cluster.gpu.name} ({format_bytes(cluster.gpu.memory_bytes)}), {cluster.nics_per_node}"
        f" NIC a node at {format_bit_rate(cluster.nic_bandwidth_bytes_per_s)},"
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
    unit, scale = time_unit([summary.iteration_s for _, summary in pairs])
    rows = [
        [
            run.name,
            reason.text,
            f"{100 * reason.share:.1f}",
            f"{scale * reason.device_seconds:,.1f}",
        ]
        for run, _ in pairs
        for reason in idle_reasons(run.plan, run.timeline)
        if reason.share >= _LEAST_SHARE
    ]
    head = ["Strategy", "Reason", "Share of all device time (%)", f"Summed over devices ({unit})"]
    caption = "Why devices idle: the longest reasons first"
    if len(pairs) == 1:
        return html_table(head[1:], [row[1:] for row in rows], caption=caption)
    return html_table(head, rows, caption=caption, num_texts=2)


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, num_texts: int = 1
) -> str:
    """Give a table whose first `num_texts` columns are text, and the first of them headings."""
    looks = [' class="text"' if index < num_texts else "" for index in range(len(head))]
    columns = "".join(
        f'<th scope="col"{look}>{escape(name)}</th>' for name, look in zip(head, looks, strict=True)
    )
    body = "\n".join(
        f'<tr><th scope="row">{escape(cells[0])}</th>'
        + "".join(
            f"<td{look}>{escape(cell)}</td>"
            for cell, look in zip(cells[1:], looks[1:], strict=True)
        )
        + "</tr>"
        for cells in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
