"""`spindle profile`: measure a workload's operators on the device at hand."""

import sys
from datetime import date as calendar_date
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import print_json, progress
from spindle_sim.cli.inputs import read_workload
from spindle_sim.cli.options import (
    BatchScale,
    ClusterName,
    JsonOutput,
    Tasks,
    Tiny,
    WorkloadName,
    integer_parser,
    number_parser,
)
from spindle_sim.cli.outputs import check_outputs, is_stdout
from spindle_sim.errors import UsageError, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spindle_sim.backend import ProfilingOptions
    from spindle_sim.estimate.probe import Profiling, SkippedProbe
    from spindle_sim.workload import Workload

__all__ = ["profile"]

_DEVICES = ("cpu", "cuda")
_DTYPES = ("float32", "bf16")
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="The profile file to write.")
]
Device = Annotated[
    str, typer.Option(metavar="cpu|cuda", help="Measure on one CPU thread or on one GPU.")
]
Dtype = Annotated[str, typer.Option(metavar="float32|bf16", help="The precision of everything.")]
Seconds = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        parser=number_parser("--seconds", above=0.0),
        help="How long to measure in all; what doesn't fit is left out, the largest first.",
    ),
]
Links = Annotated[
    bool, typer.Option("--links", help="Measure messages and all-reduces on this host, too.")
]
NumProcesses = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--nproc", least=2),
        help="With --links: the number of processes; 2 by default.",
        show_default=False,
    ),
]
Date = Annotated[
    str | None,
    typer.Option(
        metavar="YYYY-MM-DD", help="The date to record; today's by default.", show_default=False
    ),
]


def profile(
    workload: WorkloadName,
    *,
    output: Output,
    tiny: Tiny = False,
    tasks: Tasks = None,
    cluster: ClusterName = "a800:2x8",
    batch_scale: BatchScale = 1.0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    seconds: Seconds = 300.0,
    links: Links = False,
    nproc: NumProcesses = None,
    date: Date = None,
    json: JsonOutput = False,
) -> None:
    """Measure one operator of each kind on this host, for the batches of a cluster's devices."""
    check_outputs([workload, cluster], output=output)
    _check_choices(device, dtype)
    if nproc is not None and not links:
        raise UsageError(f"--nproc {nproc}: is for the links; add --links, or leave it out")
    day = _day(date)
    import spindle_sim
    from spindle_sim.backend import ProfilingOptions
    from spindle_sim.estimate import save_profile
    from spindle_sim.estimate.probe import to_profile

    read = read_workload(workload, tasks, batch_scale, tiny=tiny)
    options = ProfilingOptions(
        device=device, dtype=dtype, budget_s=seconds, num_processes=(nproc or 2) if links else 1
    )
    found = _measure(read, cluster, options)
    made = to_profile(
        found,
        name=f"{read.name} on {found.device}",
        date=day,
        tool=f"spindle-sim {spindle_sim.__version__}, {found.tool}",
    )
    save_profile(made, output)
    _say_skipped(found.skipped)
    if json:
        print_json(_document(output, found, seconds))
    else:
        _print(output, found, len(made.operators))


def _measure(workload: "Workload", cluster: str, options: "ProfilingOptions") -> "Profiling":
    from spindle_sim.backend import find_profiler
    from spindle_sim.cluster import parse_cluster
    from spindle_sim.estimate import Estimator
    from spindle_sim.planner.contract import contract
    from spindle_sim.planner.probes import probes, step_probes

    wanted = probes(contract(workload), Estimator(parse_cluster(cluster)))
    with progress(len(wanted) + (options.num_processes > 1)) as advance:
        return find_profiler("torch").profile(wanted, options, advance, step_probes(workload))


def _print(output: str, found: "Profiling", num_operators: int) -> None:
    from spindle_sim.units import counted

    stream = sys.stderr if is_stdout(output) else sys.stdout
    print(
        f"{output}: {counted(len(found.results), 'point')} of"
        f" {counted(num_operators, 'operator')} and {len(found.links)} of links on"
        f" {found.device}, in {found.elapsed_s:.0f} s;"
        f" {counted(len(found.skipped), 'point')} skipped",
        file=stream,
    )
    print(f"Not measured, but modelled by the estimator: {_unmeasured(found)}", file=stream)


def _unmeasured(found: "Profiling") -> str:
    missing = ["tensor-parallel collectives" if found.links else "collectives"]
    return ", ".join([*missing, *([] if found.optimizer else ["optimizer step"])])


def _check_choices(device: str, dtype: str) -> None:
    wrong = []
    if device not in _DEVICES:  # not the nearest name: to "gpu" that would be "cpu"
        wrong.append(f"--device {device}: known are: {', '.join(_DEVICES)}")
    if dtype not in _DTYPES:
        wrong.append(f"--dtype {dtype}: {suggestion(dtype, _DTYPES)}")
    if wrong:
        raise UsageError(*wrong)


def _day(text: str | None) -> str:
    if text is None:
        return calendar_date.today().isoformat()
    try:
        return calendar_date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"--date {text}: expected a date such as 2026-01-31") from error


def _say_skipped(skipped: "Sequence[SkippedProbe]") -> None:
    """Print a line for each operator and reason on stderr."""
    samples: dict[tuple[str, str], list[int]] = {}
    for item in skipped:
        samples.setdefault((item.probe.name, item.reason), []).append(item.probe.samples)
    for (name, reason), counts in samples.items():
        listed = ", ".join(f"{count}" for count in sorted(set(counts)))
        print(f"skipped: {name}, for {listed} samples: {reason}", file=sys.stderr)


def _document(path: str, found: "Profiling", budget_s: float) -> dict[str, object]:
    return {
        "profile": path,
        "device": found.device,
        "seconds": found.elapsed_s,
        "budget_s": budget_s,
        "points": len(found.results),
        "links": len(found.links),
        "optimizer": [
            {"parameters": step.parameters, "time_s": step.time_s} for step in found.optimizer
        ],
        "not_measured": _unmeasured(found).split(", "),
        "skipped": [
            {
                "operator": item.probe.operator.kind,
                "tokens": item.probe.tokens,
                "tp": item.probe.tp,
                "samples": item.probe.samples,
                "reason": item.reason,
            }
            for item in found.skipped
        ],
        "measured": [
            {
                "operator": item.probe.operator.kind,
                "tokens": item.probe.tokens,
                "tp": item.probe.tp,
                "samples": item.probe.samples,
                "forward_s": item.point.forward_s,
                "backward_s": item.point.backward_s,
                "spread": item.spread,
                "repeats": item.repeats,
            }
            for item in found.results
        ],
    }
