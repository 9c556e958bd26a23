"""`spindle run`: execute a plan file on this host, and say how far the simulator was off."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import new_table, print_json, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.options import (
    JsonOutput,
    OverlapSync,
    PlanFile,
    Seed,
    integer_parser,
    number_parser,
)
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.cli.validate import load_valid_plan
from spindle_sim.errors import UsageError, suggestion

if TYPE_CHECKING:
    from spindle_sim.backend import Execution, ExecutionOptions
    from spindle_sim.plan import Plan
    from spindle_sim.timeline import Timeline

__all__ = ["run"]

_DTYPES = ("float32", "float64")
_AUTOCASTS = ("bf16",)
_FIGURES = (
    ("Iteration", "iteration_s"),
    ("Forward+backward", "forward_backward_s"),
    ("Synchronization", "sync_s"),
    ("Optimizer", "optimizer_s"),
    ("Send/receive", "send_recv_s"),
    ("Idle", "idle_s"),
)


NumProcesses = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--nproc", least=1),
        help="Processes to start: one for each device of the plan, which is the default.",
        show_default=False,
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--iterations", least=1),
        help="Training steps to run; the first warms up.",
    ),
]
Emulate = Annotated[
    bool, typer.Option("--emulate", help="Wait for the planned times instead of computing.")
]
TimeScale = Annotated[
    float,
    typer.Option(
        metavar="FACTOR",
        parser=number_parser("--time-scale", above=0.0),
        help="With --emulate: wait this many times as long as planned.",
    ),
]
Dtype = Annotated[str, typer.Option(metavar="float32|float64", help="The precision of everything.")]
Autocast = Annotated[
    str | None,
    typer.Option(
        metavar="bf16",
        help="Compute and send activations in this precision; parameters stay in float32.",
        show_default=False,
    ),
]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        "--clip-norm",
        metavar="NORM",
        parser=number_parser("--clip-norm", above=0.0),
        help="Scale the gradients to this norm, over all parameters, where it is larger.",
        show_default=False,
    ),
]
BucketMegabytes = Annotated[
    float,
    typer.Option(
        "--bucket-mb",
        metavar="MB",
        parser=number_parser("--bucket-mb", above=0.0),
        help="With --overlap-sync: gradients that leave together.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Save the training here, at the end.", show_default=False),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        parser=integer_parser("--checkpoint-every", least=1),
        help="With --checkpoint: save after every so many steps, too.",
        show_default=False,
    ),
]
CheckpointKeep = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--checkpoint-keep", least=1),
        help="With --checkpoint: remove all but the latest; all stay without it.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Go on from the latest whole checkpoint in a folder, or from one of them.",
        show_default=False,
    ),
]
UntilStep = Annotated[
    int | None,
    typer.Option(
        metavar="STEP",
        parser=integer_parser("--until-step", least=1),
        help="End after this step of the whole training, instead of --iterations.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        parser=number_parser("--timeout", above=0.0),
        help="How long a message or a collective may take.",
    ),
]
TimelineFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write the executed timeline (JSON).", show_default=False),
]
TraceFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write the executed iteration for the Perfetto UI (Chrome JSON).",
        show_default=False,
    ),
]


def run(
    plan: PlanFile,
    *,
    nproc: NumProcesses = None,
    iterations: Iterations = 3,
    emulate: Emulate = False,
    time_scale: TimeScale = 1.0,
    dtype: Dtype = "float32",
    autocast: Autocast = None,
    clip_norm: ClipNorm = None,
    overlap_sync: OverlapSync = False,
    bucket_mb: BucketMegabytes = 100.0,
    checkpoint: Checkpoint = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_keep: CheckpointKeep = None,
    resume: Resume = None,
    until_step: UntilStep = None,
    timeout: Timeout = 120.0,
    seed: Seed = 0,
    timeline: TimelineFile = None,
    trace: TraceFile = None,
    json: JsonOutput = False,
) -> None:
    """Run a plan on this host, a process for each device, beside its simulation."""
    check_outputs([plan], timeline=timeline, trace=trace)
    _check_choices(dtype, autocast)
    from spindle_sim.backend import CheckpointOptions, ExecutionOptions, find_executor

    loaded = load_valid_plan(plan)
    _check_processes(nproc, loaded)
    options = ExecutionOptions(
        iterations=iterations,
        emulate=emulate,
        time_scale=time_scale,
        dtype=dtype,
        autocast=autocast,
        seed=seed,
        clip_norm=clip_norm,
        overlap_sync=overlap_sync,
        bucket_mb=bucket_mb,
        timeout_s=timeout,
        checkpoints=CheckpointOptions(
            folder=checkpoint,
            every=checkpoint_every,
            keep=checkpoint_keep,
            resume=resume,
            until_step=until_step,
        ),
    )
    execution = find_executor("torch").execute(loaded, options)
    simulated = _simulated(loaded, options)
    _write(loaded, execution, timeline, trace)
    if json:
        print_json(_document(loaded, execution, simulated, options))
        return
    _print(loaded, execution, simulated, options)
    for name, path in (("Timeline", timeline), ("Trace", trace)):
        if path is not None:
            print(f"{name}: {path}")


def _check_choices(dtype: str, autocast: str | None) -> None:
    for name, value, allowed in (("dtype", dtype, _DTYPES), ("autocast", autocast, _AUTOCASTS)):
        if value is not None and value not in allowed:
            raise UsageError(f"--{name} {value}: {suggestion(value, allowed)}")


def _check_processes(nproc: int | None, plan: "Plan") -> None:
    if nproc is not None and nproc != plan.cluster.num_devices:
        raise UsageError(
            f"--nproc {nproc}: the plan is for {plan.cluster.num_devices} devices, a process"
            " each; plan for a cluster of that size"
        )


def _simulated(plan: "Plan", options: "ExecutionOptions") -> "Timeline":
    """Give the simulated iteration of what was executed: emulated messages cost next to nothing."""
    from spindle_sim.simulator import simulate

    if not options.emulate:
        return simulate(
            plan, overlap_sync=options.overlap_sync, bucket_bytes=options.bucket_mb * 1e6
        )
    scale = options.time_scale
    timeline = simulate(plan, network=False)
    spans = tuple(
        replace(span, start_s=span.start_s * scale, end_s=span.end_s * scale)
        for span in timeline.spans
    )
    return replace(timeline, spans=spans, memory=())


def _write(plan: "Plan", execution: "Execution", timeline: str | None, trace: str | None) -> None:
    from spindle_sim.plan.atomic import write_atomically
    from spindle_sim.report import timeline_to_json, write_trace

    if timeline is not None:
        write_atomically(timeline, timeline_to_json(execution.timeline).encode())
    if trace is not None:
        write_trace(Path(trace), plan, execution.timeline)


def _document(
    plan: "Plan", execution: "Execution", simulated: "Timeline", options: "ExecutionOptions"
) -> dict[str, object]:
    ours, theirs = _figures(plan, simulated), _figures(plan, execution.timeline)
    return {
        "strategy": plan.strategy,
        "workload": plan.workload.name,
        "ranks": plan.cluster.num_devices,
        "backend": execution.timeline.backend,
        "emulated": options.emulate,
        "first_step": execution.first_step,
        "iterations_s": list(execution.iterations_s),
        "losses": list(execution.losses),
        "simulated": ours,
        "executed": theirs,
        "error": ours["iteration_s"] / theirs["iteration_s"] - 1,
        "slices": _slice_rows(plan, simulated, execution.timeline),
    }


def _figures(plan: "Plan", timeline: "Timeline") -> dict[str, float]:
    from spindle_sim.metrics import summarize

    summary = summarize(plan, timeline)
    return {field: float(getattr(summary, field)) for _, field in _FIGURES}


def _parts(figures: dict[str, float]) -> dict[str, float]:
    """Give the figures with the optimizer step apart from the synchronization."""
    return {**figures, "sync_s": figures["sync_s"] - figures["optimizer_s"]}


def _slice_rows(
    plan: "Plan", simulated: "Timeline", executed: "Timeline"
) -> list[dict[str, object]]:
    """Give for each slice and phase how long its slowest device computed in both."""
    ours, theirs = _slice_durations_s(simulated), _slice_durations_s(executed)
    return [
        {
            "slice": item.id,
            "phase": phase,
            "simulated_s": ours.get((item.id, phase)),
            "executed_s": theirs.get((item.id, phase)),
        }
        for item in plan.slices
        for phase in ("forward", "backward")
        if (item.id, phase) in ours
    ]


def _slice_durations_s(timeline: "Timeline") -> dict[tuple[str, str], float]:
    durations: dict[tuple[str, str], float] = {}
    for span in timeline.spans:
        if span.kind == "compute":
            key = span.slice, str(span.phase)
            durations[key] = max(durations.get(key, 0.0), span.duration_s)
    return durations


def _print(
    plan: "Plan", execution: "Execution", simulated: "Timeline", options: "ExecutionOptions"
) -> None:
    from spindle_sim.units import format_duration

    console = stdout_console()
    ours = _parts(_figures(plan, simulated))
    theirs = _parts(_figures(plan, execution.timeline))
    how = "emulated" if options.emulate else "executed"
    table = new_table(
        f"One iteration of {plan.strategy} for {plan.workload.name} on"
        f" {plan.cluster.num_devices} ranks ({execution.timeline.backend})",
        "",
        "simulated",
        how,
        "ratio",
    )
    for name, field in _FIGURES:
        ratio = f"{ours[field] / theirs[field]:.3f}" if theirs[field] else "-"
        table.add_row(name, format_duration(ours[field]), format_duration(theirs[field]), ratio)
    print_table(console, table)
    if execution.losses and execution.losses[-1]:
        losses = new_table("Losses", "", "first step", "last step")
        for task, loss in execution.losses[-1].items():
            losses.add_row(task, f"{execution.losses[0][task]:.4f}", f"{loss:.4f}")
        print_table(console, losses)
    if not options.emulate:
        console.print(f"Simulated for {plan.cluster.gpu.name} ({plan.profile}), not for this host.")
