"""Medians of operators' times within a budget: the smallest first, the largest left out.

A point is warmed up, then run until its medians are stable or its share of the time is used up.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from spindle_sim.backend import ProfilingOptions
from spindle_sim.errors import InputError, UsageError
from spindle_sim.estimate.probe import Probe, ProbeResult, Profiling, SkippedProbe, StepProbe
from spindle_sim.estimate.profile import LinkPoint, OperatorPoint, OptimizerPoint
from spindle_sim.plan import Backward
from spindle_sim.workload import Custom
from spindle_torch.bench import Bench, make_bench, make_step, num_stepped, step_s

__all__ = ["DTYPES", "device_name", "measured", "relative_spread"]

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
_LEAST_RUNS = 3
_STABLE_RUNS = 5  # fewer say little of the spread
_MOST_RUNS = 50
_STABLE = 0.01  # the median's own uncertainty, relative: about IQR / sqrt(runs)
_RUNS_OF_POINT = 3 * (1 + _LEAST_RUNS)  # at least: three kinds of backward, each warmed up once
_BYTES_PER_MODELLED_ELEMENT = 2
_SHARE_OF_STEPS = 0.1  # of the whole time
_CACHES = 2  # times the size of a GPU's: what is written to have them empty
_STEPPED_BYTES = 20  # a parameter, its gradient, two moments, and some to spare


def measured(
    probes: Sequence[Probe],
    options: ProfilingOptions,
    advance: Callable[[str], None],
    *,
    deadline_s: float,
    links: tuple[LinkPoint, ...] = (),
    steps: Sequence[StepProbe] = (),
) -> Profiling:
    """Measure steps, then the probes, smallest first, until `deadline_s` of the monotonic clock.

    Raises:
        UsageError: the time isn't enough for a single point.
    """
    begun_s = deadline_s - options.budget_s
    device = torch.device(options.device)
    results: list[ProbeResult] = []
    skipped: list[SkippedProbe] = []
    with _one_thread(device):
        _warm_up(probes, options, device)
        optimizer = tuple(_stepped(steps, options, device))
        pace = _Pace(deadline_s=deadline_s)
        for index, probe in enumerate(probes):
            advance(probe.name)
            share_s = pace.left_s / (len(probes) - index)
            found = _probed(probe, options, device, pace, share_s)
            if isinstance(found, ProbeResult):
                results.append(found)
            else:
                skipped.append(found)
    if not results:
        reasons = ", ".join(sorted({item.reason for item in skipped})) or "it has no operators"
        raise UsageError(f"no point of the workload could be measured: {reasons}")
    how = ", one thread" if device.type == "cpu" else ", nothing of it in the L2 cache"
    return Profiling(
        device=device_name(device),
        method=(
            f"medians of {_LEAST_RUNS} to {_MOST_RUNS} runs in {options.dtype}{how}, one"
            " operator of a kind alone"
        ),
        tool=f"torch {torch.__version__}",
        elapsed_s=time.monotonic() - begun_s,
        results=tuple(results),
        skipped=tuple(skipped),
        links=links,
        optimizer=optimizer,
        element_bytes=float(DTYPES[options.dtype].itemsize),
    )


def device_name(device: torch.device) -> str:
    """Give what the device is called by whoever made it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} (CPU)"
    return f"{platform.processor() or platform.machine()} (CPU)"


def _warm_up(probes: Sequence[Probe], options: ProfilingOptions, device: torch.device) -> None:
    """Have a GPU load what it needs at first, which takes seconds that no point should be told of.

    From the time of one point that of the next is foretold.
    """
    if device.type != "cuda":
        return
    for probe in probes:
        if not isinstance(probe.operator, Custom):
            with suppress(InputError):  # it can't be divided so: told when its turn comes
                bench = make_bench(probe, DTYPES[options.dtype], device)
                output = bench.forward()
                torch.autograd.backward(output, torch.ones_like(output))
                torch.cuda.synchronize(device)
                return


def _stepped(
    steps: Sequence[StepProbe], options: ProfilingOptions, device: torch.device
) -> Iterator[OptimizerPoint]:
    """Measure optimizer steps; parameters are float32, as they are under autocast, too.

    What is too large for the time or the memory is left out.
    """
    until_s = time.monotonic() + _SHARE_OF_STEPS * options.budget_s
    for probe in steps:
        needed_bytes = _STEPPED_BYTES * probe.parameters
        if needed_bytes > _free_bytes(device) or time.monotonic() > until_s:
            continue
        optimizer = make_step(probe, torch.float32, device)
        if optimizer is None:
            continue
        step_s(optimizer)  # warms up, and makes the moments
        found: list[float] = []
        while len(found) < _LEAST_RUNS or (
            len(found) < _STABLE_RUNS and time.monotonic() < until_s
        ):
            found.append(step_s(optimizer))
        yield OptimizerPoint(
            parameters=float(num_stepped(optimizer)), time_s=statistics.median(found)
        )


@dataclass(slots=True)
class _Pace:
    """How long points took so far for their work, to foretell the next one."""

    deadline_s: float
    last_work: float = 0.0
    last_run_s: float = 0.0

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def fits(self, probe: Probe) -> bool:
        """Tell whether a point of at least the work of the last one ends in time, at its pace."""
        ratio = max(1.0, probe.work / self.last_work) if self.last_work else 1.0
        return _RUNS_OF_POINT * self.last_run_s * ratio < self.left_s


def _probed(
    probe: Probe,
    options: ProfilingOptions,
    device: torch.device,
    pace: _Pace,
    share_s: float,
) -> ProbeResult | SkippedProbe:
    if isinstance(probe.operator, Custom):
        return SkippedProbe(probe=probe, reason="a custom operator has no module to run")
    if not pace.fits(probe):
        return SkippedProbe(probe=probe, reason="would not fit into the time (--seconds)")
    dtype = DTYPES[options.dtype]
    if _needed_bytes(probe, dtype) > _free_bytes(device):
        return SkippedProbe(probe=probe, reason="would not fit into the device's memory")
    begun_s = time.monotonic()
    try:
        bench = make_bench(probe, dtype, device)
        result, runs = _result(probe, bench, device, share_s)
    except InputError as error:
        return SkippedProbe(probe=probe, reason=str(error))
    except torch.OutOfMemoryError:
        return SkippedProbe(probe=probe, reason="does not fit into the device's memory")
    pace.last_work, pace.last_run_s = probe.work, (time.monotonic() - begun_s) / runs
    return result


def _result(
    probe: Probe, bench: Bench, device: torch.device, share_s: float
) -> tuple[ProbeResult, int]:
    """Give the point, and how often its operator ran for it."""
    kinds = bench.backwards
    times = {kind: _timed(bench, kind, device, share_s / len(kinds)) for kind in kinds}
    first = times[kinds[0]]  # all gradients, or those that there are
    backward_s = {
        kind: statistics.median(back for _, back in found) for kind, found in times.items()
    }
    point = OperatorPoint(
        samples=float(probe.samples),
        forward_s=statistics.median(forward for forward, _ in first),
        backward_s=backward_s[kinds[0]],
        input_backward_s=backward_s.get(Backward.INPUT_ONLY),
        weight_backward_s=backward_s.get(Backward.WEIGHT_ONLY),
    )
    spread = max(relative_spread([run[place] for run in first]) for place in (0, 1))
    runs = sum(1 + len(found) for found in times.values())
    return ProbeResult(probe=probe, point=point, spread=spread, repeats=len(first)), runs


def _timed(
    bench: Bench, backward: Backward, device: torch.device, share_s: float
) -> list[tuple[float, float]]:
    """Give forward and backward seconds of each run after one that warms up."""
    bench.want(backward)
    output = bench.forward()
    gradient = torch.ones_like(output)  # made once: in a run it comes from the next operator
    torch.autograd.backward(output, gradient)
    del output
    run = _GpuRun.on(device) if device.type == "cuda" else _run_on_cpu
    until_s = time.monotonic() + share_s
    found: list[tuple[float, float]] = []
    while len(found) < _MOST_RUNS:
        bench.forget()
        found.append(run(bench, gradient))
        if len(found) >= _LEAST_RUNS and (_stable(found) or time.monotonic() > until_s):
            break
    bench.forget()
    return found


def _run_on_cpu(bench: Bench, gradient: torch.Tensor) -> tuple[float, float]:
    begun_s = time.perf_counter()
    output = bench.forward()
    between_s = time.perf_counter()
    torch.autograd.backward(output, gradient)
    return between_s - begun_s, time.perf_counter() - between_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuRun:
    """Times runs by events, each from an idle GPU, with caches that `others` have been in.

    In a model other operators run between two of a kind, and leave nothing of its parameters there.
    That the GPU is idle lets the time to launch show, where it is longer than the kernels.
    """

    others: torch.Tensor

    @classmethod
    def on(cls, device: torch.device) -> "_GpuRun":
        size = _CACHES * torch.cuda.get_device_properties(device).L2_cache_size
        return cls(others=torch.empty(size, dtype=torch.uint8, device=device))

    def __call__(self, bench: Bench, gradient: torch.Tensor) -> tuple[float, float]:
        begun, between, ended = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(3)
        )
        self.others.zero_()
        torch.cuda.synchronize()
        begun.record()
        output = bench.forward()
        between.record()
        torch.autograd.backward(output, gradient)
        ended.record()
        torch.cuda.synchronize()
        return 1e-3 * begun.elapsed_time(between), 1e-3 * between.elapsed_time(ended)


def _stable(found: Sequence[tuple[float, float]]) -> bool:
    if len(found) < _STABLE_RUNS:
        return False
    return all(
        relative_spread([run[place] for run in found]) <= _STABLE * len(found) ** 0.5
        for place in (0, 1)
    )


def relative_spread(times_s: Sequence[float]) -> float:
    """Give the interquartile range over the median."""
    first, middle, third = statistics.quantiles(times_s, n=4, method="inclusive")
    return (third - first) / middle


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)  # as the ranks of a run have
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _needed_bytes(probe: Probe, dtype: torch.dtype) -> float:
    """Give roughly what the parameters, kept activations and gradients of a point take."""
    cost = probe.cost
    activations = cost.saved_bytes / probe.tp + cost.saved_replicated_bytes + cost.output_bytes
    activations += probe.pooled_bytes
    scale = dtype.itemsize / _BYTES_PER_MODELLED_ELEMENT
    parameters = dtype.itemsize * probe.operator.parameters / probe.tp
    return 2 * (parameters + scale * activations * probe.samples)


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + unused)
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")
