"""Figures of merit of one iteration: time, throughput, utilization, breakdown, memory, hours."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spindle_sim.metrics.breakdown import Breakdown, break_down
from spindle_sim.plan import Backward, MetaOp, Plan
from spindle_sim.timeline import Kind, Phase, Span, Timeline

__all__ = [
    "DeviceSummary",
    "MetaOpSummary",
    "Summary",
    "model_flops",
    "summarize",
    "utilization_over_time",
]

_BACKWARD_FLOPS = {  # per forward FLOP: one for the gradient of the inputs, one for the weights'
    Backward.FULL: 2.0,
    Backward.INPUT_ONLY: 1.0,
    Backward.WEIGHT_ONLY: 1.0,
    Backward.NONE: 0.0,
}
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One device over the iteration; seconds add up to the iteration's duration."""

    device: int
    utilization: float  # model FLOP/s over peak
    forward_backward_s: float
    sync_s: float  # with the optimizer step
    send_recv_s: float
    idle_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaOpSummary:
    """One MetaOp while it computes: `utilization` is of its own devices, for as long as it runs."""

    metaop: str
    task: str
    utilization: float
    device_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One iteration in figures.

    The four parts are seconds of an average device and add up to `iteration_s`:
    `forward_backward_s` computes; `sync_s` is the exposed part of gradient synchronization (no
    forward or backward meanwhile) and the optimizer step, of which `optimizer_s`; `send_recv_s`
    waits with a transfer of its own in flight and nothing else to do; `idle_s` is the rest.
    """

    iteration_s: float
    samples_per_s: float
    model_flops_per_s: float
    utilization: float  # of the cluster's peak FLOP/s
    forward_backward_s: float
    sync_s: float
    optimizer_s: float
    send_recv_s: float
    idle_s: float
    peak_memory_bytes: float  # of the fullest device
    gpu_hours_per_iteration: float
    devices: tuple[DeviceSummary, ...]
    metaops: tuple[MetaOpSummary, ...]

    @property
    def gpu_hours_per_1000_iterations(self) -> float:
        """GPU-hours of a thousand iterations like this one."""
        return 1000 * self.gpu_hours_per_iteration


def model_flops(metaop: MetaOp) -> float:
    """Give the FLOP of one operator, forward and backward, over the whole batch.

    Three times the forward where inputs and weights need gradients, less where frozen.
    Recomputation doesn't count: it is no progress.
    """
    return metaop.flops * (1.0 + _BACKWARD_FLOPS[metaop.backward])


def summarize(plan: Plan, timeline: Timeline) -> Summary:
    """Give the figures of one iteration of a plan."""
    iteration_s = timeline.iteration_s
    peak_flops = plan.cluster.gpu.peak_flops
    by_device: dict[int, list[Span]] = {device: [] for device in range(timeline.num_devices)}
    for span in timeline.spans:
        by_device[span.device].append(span)
    parts = {device: break_down(spans) for device, spans in by_device.items()}
    flops, memory = _device_flops(plan), _peak_memory(plan, timeline)
    devices = tuple(
        _device_summary(
            device,
            part,
            iteration_s,
            utilization=_ratio(flops.get(device, 0.0), iteration_s * peak_flops),
            peak_memory_bytes=memory.get(device, 0.0),
        )
        for device, part in parts.items()
    )
    count = timeline.num_devices
    total_flops = sum(flops.values())
    samples = sum(task.batch_size for task in plan.workload.tasks)
    return Summary(
        iteration_s=iteration_s,
        samples_per_s=_ratio(samples, iteration_s),
        model_flops_per_s=_ratio(total_flops, iteration_s),
        utilization=_ratio(total_flops, iteration_s * count * peak_flops),
        forward_backward_s=sum(item.forward_backward_s for item in devices) / count,
        sync_s=sum(item.sync_s for item in devices) / count,
        optimizer_s=sum(part.optimizer_s for part in parts.values()) / count,
        send_recv_s=sum(item.send_recv_s for item in devices) / count,
        idle_s=sum(item.idle_s for item in devices) / count,
        peak_memory_bytes=max(memory.values(), default=0.0),
        gpu_hours_per_iteration=iteration_s * count / _SECONDS_PER_HOUR,
        devices=devices,
        metaops=_metaop_summaries(plan, timeline),
    )


def utilization_over_time(
    plan: Plan, timeline: Timeline, num_bins: int = 200
) -> tuple[tuple[float, float], ...]:
    """Give (middle of the bin in seconds, utilization of the cluster in it) for equal bins.

    The model FLOP of a span are spread evenly over it.
    """
    iteration_s = timeline.iteration_s
    if not iteration_s:
        return ()
    rates = _span_rates(plan, timeline)
    edges = np.linspace(0.0, iteration_s, num_bins + 1)
    done = _cumulative(rates, edges)
    width_s = iteration_s / num_bins
    peak = plan.cluster.gpu.peak_flops * timeline.num_devices * width_s
    middles = (edges[:-1] + edges[1:]) / 2
    return tuple(
        (float(middle), float(flops) / peak)
        for middle, flops in zip(middles, np.diff(done), strict=True)
    )


def _device_summary(
    device: int,
    part: Breakdown,
    iteration_s: float,
    *,
    utilization: float,
    peak_memory_bytes: float,
) -> DeviceSummary:
    return DeviceSummary(
        device=device,
        utilization=utilization,
        forward_backward_s=part.forward_backward_s,
        sync_s=part.sync_s + part.optimizer_s,
        send_recv_s=part.send_recv_s,
        idle_s=iteration_s - part.busy_s,
        peak_memory_bytes=peak_memory_bytes,
    )


def _device_flops(plan: Plan) -> dict[int, float]:
    metaops = plan.metaop_by_id()
    flops: dict[int, float] = {}
    for item in plan.slices:
        share = model_flops(metaops[item.metaop]) * item.num_ops / len(item.devices)
        for device in item.devices:
            flops[device] = flops.get(device, 0.0) + share
    return flops


def _peak_memory(plan: Plan, timeline: Timeline) -> dict[int, float]:
    """Give the peaks that were sampled, or what the plan says if nothing was."""
    if not timeline.memory:
        return {item.device: item.total_bytes for item in plan.memory}
    peaks: dict[int, float] = {}
    for sample in timeline.memory:
        peaks[sample.device] = max(peaks.get(sample.device, 0.0), sample.bytes)
    return peaks


def _metaop_summaries(plan: Plan, timeline: Timeline) -> tuple[MetaOpSummary, ...]:
    seconds: dict[str, float] = {}
    for span in timeline.spans:
        if span.kind is Kind.COMPUTE:
            worked_s = span.duration_s - span.wait_s
            seconds[span.metaop] = seconds.get(span.metaop, 0.0) + worked_s
    peak_flops = plan.cluster.gpu.peak_flops
    return tuple(
        MetaOpSummary(
            metaop=metaop.id,
            task=metaop.task,
            utilization=_ratio(
                model_flops(metaop) * metaop.num_ops, seconds.get(metaop.id, 0.0) * peak_flops
            ),
            device_seconds=seconds.get(metaop.id, 0.0),
        )
        for metaop in plan.metaops
    )


def _span_rates(plan: Plan, timeline: Timeline) -> NDArray[np.float64]:
    """Give rows of (start, end, FLOP per second) for every span that computes."""
    metaops, slices = plan.metaop_by_id(), plan.slice_by_id()
    rows: list[tuple[float, float, float]] = []
    for span in timeline.spans:
        if span.kind is not Kind.COMPUTE or not span.duration_s:
            continue
        metaop, item = metaops[span.metaop], slices[span.slice]
        factor = 1.0 if span.phase is Phase.FORWARD else _BACKWARD_FLOPS[metaop.backward]
        share = len(item.devices) * plan.micro_batches(item.round)
        flops = factor * metaop.flops * item.num_ops / share
        rows.append((span.start_s, span.end_s, flops / span.duration_s))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _cumulative(rates: NDArray[np.float64], times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the FLOP done by each of `times_s`: the integral of the summed rates, exactly."""
    corners, index = np.unique(np.concatenate([rates[:, 0], rates[:, 1]]), return_inverse=True)
    if not len(corners):
        return np.zeros_like(times_s)
    steps = np.zeros_like(corners)
    np.add.at(steps, index, np.concatenate([rates[:, 2], -rates[:, 2]]))
    done = np.concatenate([[0.0], np.cumsum(np.cumsum(steps)[:-1] * np.diff(corners))])
    at_times: NDArray[np.float64] = np.interp(times_s, corners, done)
    return at_times


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0
