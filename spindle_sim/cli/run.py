"""`spindle run`: execute a plan file on this host, and say how far the simulator was off."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.options import JsonOutput, OverlapSync, PlanFile, Seed
from spindle_sim.cli.outputs import check_folder, check_outputs
from spindle_sim.cli.run_options import (
    Autocast,
    BucketMegabytes,
    Checkpoint,
    CheckpointEvery,
    CheckpointKeep,
    ClipNorm,
    Dtype,
    Emulate,
    Iterations,
    NumProcesses,
    Resume,
    TimelineFile,
    Timeout,
    TimeScale,
    TraceFile,
    UntilStep,
)
from spindle_sim.cli.validate import load_valid_plan
from spindle_sim.errors import UsageError, suggestion

if TYPE_CHECKING:
    from spindle_sim.backend import Execution, ExecutionOptions
    from spindle_sim.plan import Plan
    from spindle_sim.timeline import Timeline

__all__ = ["run"]

_OF_MODULES = "split from torch modules"  # the note of what `spindle_torch.api` made
_ITERATIONS = 3
_BUCKET_MB = 100.0
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


def run(
    plan: PlanFile,
    *,
    nproc: NumProcesses = None,
    iterations: Iterations = None,
    emulate: Emulate = False,
    time_scale: TimeScale = None,
    dtype: Dtype = None,
    autocast: Autocast = None,
    clip_norm: ClipNorm = None,
    overlap_sync: OverlapSync = False,
    bucket_mb: BucketMegabytes = None,
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
    check_folder("--checkpoint", checkpoint)
    _check_choices(dtype, autocast)
    _check_computed(time_scale, dtype, emulate=emulate)
    _check_end(iterations, until_step)
    from spindle_sim.backend import CheckpointOptions, ExecutionOptions

    loaded = _loaded(plan, nproc, emulate=emulate)
    _check_buckets(bucket_mb, overlap_sync=overlap_sync or loaded.overlap_sync)
    options = ExecutionOptions(
        iterations=iterations or _ITERATIONS,
        emulate=emulate,
        time_scale=1.0 if time_scale is None else time_scale,
        dtype=dtype or _DTYPES[0],
        autocast=autocast,
        seed=seed,
        clip_norm=clip_norm,
        overlap_sync=overlap_sync,
        bucket_mb=_BUCKET_MB if bucket_mb is None else bucket_mb,
        timeout_s=timeout,
        checkpoints=CheckpointOptions(
            folder=checkpoint,
            every=checkpoint_every,
            keep=checkpoint_keep,
            resume=resume,
            until_step=until_step,
        ),
    )
    execution = _executed(loaded, options)
    simulated = _simulated(loaded, options)
    _write(loaded, execution, timeline, trace)
    if json:
        print_json(_document(loaded, execution, simulated, options))
    else:
        _print(loaded, execution, simulated, options)
        _print_files(Timeline=timeline, Trace=trace)


def _executed(plan: "Plan", options: "ExecutionOptions") -> "Execution":
    from spindle_sim.backend import find_executor
    from spindle_sim.units import counted

    with progress(1, in_logs=False) as advance:  # there the ranks tell their steps
        advance(f"{counted(plan.cluster.num_devices, 'rank')}: loading torch, then running")
        return find_executor("torch").execute(plan, options)


def _check_choices(dtype: str | None, autocast: str | None) -> None:
    for name, value, allowed in (("dtype", dtype, _DTYPES), ("autocast", autocast, _AUTOCASTS)):
        if value is not None and value not in allowed:
            raise UsageError(f"--{name} {value}: {suggestion(value, allowed)}")


def _check_end(iterations: int | None, until_step: int | None) -> None:
    if iterations is not None and until_step is not None:
        raise UsageError("--iterations and --until-step both say when to end; leave one out")


def _check_computed(time_scale: float | None, dtype: str | None, *, emulate: bool) -> None:
    """Refuse what would be passed over, as the run computes or doesn't.

    Raises:
        UsageError: with all of it.
    """
    wrong = []
    if time_scale is not None and not emulate:
        wrong.append(f"--time-scale {time_scale:g}: is for --emulate; add that, or leave it out")
    if dtype is not None and emulate:
        wrong.append(f"--dtype {dtype}: an emulated run computes nothing; leave one out")
    if wrong:
        raise UsageError(*wrong)


def _check_processes(nproc: int | None, plan: "Plan") -> None:
    from spindle_sim.units import counted

    if nproc is not None and nproc != plan.cluster.num_devices:
        raise UsageError(
            f"--nproc {nproc}: the plan is for {counted(plan.cluster.num_devices, 'device')}, a"
            " process each; plan for a cluster of that size"
        )


def _loaded(path: str, nproc: int | None, *, emulate: bool) -> "Plan":
    plan = load_valid_plan(path)
    _check_processes(nproc, plan)
    _check_modules(path, plan, emulate=emulate)
    return plan


def _check_buckets(bucket_mb: float | None, *, overlap_sync: bool) -> None:
    if bucket_mb is not None and not overlap_sync:
        raise UsageError(
            f"--bucket-mb {bucket_mb:g}: is for --overlap-sync; add that, or leave it out"
        )


def _check_modules(path: str, plan: "Plan", *, emulate: bool) -> None:
    """Refuse to compute a plan of a user's own modules, of which the file has figures alone.

    Raises:
        UsageError: it is one.
    """
    if plan.workload.note == _OF_MODULES and not emulate:
        raise UsageError(
            f"{path}: is a plan for torch modules of a script (workload {plan.workload.name!r}),"
            f" which are in that script alone: run it, with train(model, load_plan({path!r}),"
            " steps=...) in it, or add --emulate"
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


def _print_files(**paths: str | None) -> None:
    for name, path in paths.items():
        if path is not None:
            print(f"{name}: {path}")


def _print(
    plan: "Plan", execution: "Execution", simulated: "Timeline", options: "ExecutionOptions"
) -> None:
    from spindle_sim.units import counted, format_duration

    console = stdout_console()
    ours = _parts(_figures(plan, simulated))
    theirs = _parts(_figures(plan, execution.timeline))
    how = "emulated" if options.emulate else "executed"
    table = new_table(
        f"One iteration of {plan.strategy} for {plan.workload.name} on"
        f" {counted(plan.cluster.num_devices, 'rank')} ({execution.timeline.backend})",
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
