"""What the page's script draws, as plain data: numbers, names, encoded spans; no HTML."""

from collections.abc import Sequence

from spindle_sim.metrics import CriticalPath, Summary, utilization_over_time
from spindle_sim.plan import Plan, Slice
from spindle_sim.report.curves_figure import curves_figure
from spindle_sim.report.encode import encode_spans
from spindle_sim.report.palette import KIND_STYLES, backward_colour, task_style
from spindle_sim.report.path import path_line
from spindle_sim.report.run import Curve, Run
from spindle_sim.report.traits import num_stages, stage_numbers
from spindle_sim.timeline import Kind, Phase

__all__ = ["Content", "page_content"]

Content = dict[str, object]
_GIB = 2.0**30
_BINS = 400


def page_content(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    curves: Sequence[Curve],
    paths: Sequence[CriticalPath],
) -> Content:
    """Give everything that the charts show."""
    tasks: dict[str, int] = {}
    for run in runs:
        for task in run.plan.workload.tasks:
            tasks.setdefault(task.name, len(tasks))
    return {
        "categories": _categories(tasks),
        "num_tasks": len(tasks),
        "kinds": list(Kind),
        "phases": list(Phase),
        "runs": [
            {**_run(run, summary, tasks), "path": path_line(path)}
            for run, summary, path in zip(runs, summaries, paths, strict=True)
        ],
        "curves": curves_figure(curves, tasks) if curves else None,
    }


def _categories(tasks: dict[str, int]) -> list[Content]:
    found: list[Content] = []
    for name, index in tasks.items():
        style = task_style(index)
        backward = backward_colour(style.colour)
        found.append(
            {"name": name, "colour": style.colour, "pattern": style.pattern, "backward": backward}
        )
    for kind in Kind:
        style = KIND_STYLES[kind]
        found.append({"name": kind.value, "colour": style.colour, "pattern": style.pattern})
    return found


def _run(run: Run, summary: Summary, tasks: dict[str, int]) -> Content:
    plan = run.plan
    slices = {item.id: index for index, item in enumerate(plan.slices)}
    spans = encode_spans(run.timeline, tasks, slices)
    over_time = utilization_over_time(plan, run.timeline, _BINS)
    return {
        "name": run.name,
        "iteration_ms": summary.iteration_s * 1e3,
        "num_devices": run.timeline.num_devices,
        "devices_per_node": plan.cluster.devices_per_node,
        "tick_ms": spans.tick_s * 1e3,
        "counts": spans.counts,
        "spans": spans.data,
        "metaops": [metaop.id for metaop in plan.metaops],
        "num_stages": num_stages(plan),
        "slices": _slices(plan),
        "time_ms": [_short(time_s * 1e3) for time_s, _ in over_time],
        "utilization": [_short(100 * value) for _, value in over_time],
        "device_utilization": [_short(100 * item.utilization) for item in summary.devices],
        "metaop_utilization": [_short(100 * item.utilization) for item in summary.metaops],
        "breakdown_ms": [
            _short(1e3 * value)
            for value in (
                summary.forward_backward_s,
                summary.sync_s - summary.optimizer_s,
                summary.optimizer_s,
                summary.send_recv_s,
                summary.idle_s,
            )
        ],
        "capacity_gib": plan.cluster.gpu.memory_bytes / _GIB,
        "usable_gib": plan.cluster.usable_memory_bytes / _GIB,
        "memory_gib": _memory(plan, run.timeline.num_devices),
        "peak_gib": [_short(item.peak_memory_bytes / _GIB) for item in summary.devices],
    }


def _slices(plan: Plan) -> list[list[object]]:
    numbers = {metaop.id: index for index, metaop in enumerate(plan.metaops)}
    stages = stage_numbers(plan)
    return [
        [
            item.id,
            numbers.get(item.metaop, -1),
            item.round,
            item.stage,
            item.first_op,
            item.num_ops,
            item.dp,
            item.tp,
            _device_ranges(item),
            _short(1e3 * item.start_s),
            _short(1e3 * item.forward_s),
            _short(1e3 * item.backward_s),
            int(item.recompute),
            stages[item.round, item.stage],
        ]
        for item in plan.slices
    ]


def _device_ranges(item: Slice) -> str:
    """Give "0-3, 8" for devices 0, 1, 2, 3, 8."""
    ranges: list[tuple[int, int]] = []
    for device in sorted(item.devices):
        if ranges and ranges[-1][1] == device - 1:
            ranges[-1] = ranges[-1][0], device
        else:
            ranges.append((device, device))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _memory(plan: Plan, num_devices: int) -> dict[str, list[float]]:
    """Give what the plan foresees on each device, by what it is for."""
    by_device = {entry.device: entry for entry in plan.memory}
    return {
        name: [
            _short(getattr(by_device[device], f"{name}_bytes") / _GIB)
            if device in by_device
            else 0.0
            for device in range(num_devices)
        ]
        for name in ("parameter", "gradient", "optimizer", "activation")
    }


def _short(value: float) -> float:
    """Give six significant digits: a chart shows no more, and the file stays small."""
    return float(f"{value:.6g}")
