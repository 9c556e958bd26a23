"""What a plan must be for this backend to run it, checked before anything starts; no torch."""

from collections.abc import Mapping

from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import PlanError, UsageError
from spindle_sim.plan import Plan
from spindle_torch.buckets import Overlap
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs
from spindle_torch.program import Program
from spindle_torch.shapes import CustomShape, sites

__all__ = ["AUTOCASTS", "DTYPES", "check_requirements", "overlap_of"]

DTYPES = ("float32", "float64")
AUTOCASTS = {"bf16": "bfloat16"}


def check_requirements(
    plan: Plan, options: ExecutionOptions, custom: Mapping[str, CustomShape] | None
) -> tuple[Program, ...]:
    """Give the programs of a plan that can be run; `custom` are the shapes of the user's modules.

    None where the whole model is the user's own.

    Raises:
        UsageError: there is no such dtype or autocast, they don't go together, a norm, size or
            number of steps is too small, or there is nothing to save.
        InputError: the workload doesn't say what an operator computes or how inputs are joined.
        PlanError: the plan asks for what this backend can't do, or the programs would deadlock.
    """
    _check_options(options)
    _check_plan(plan, is_brought=custom is None and not options.emulate)
    if not options.emulate and custom is not None:
        sites(plan.workload, custom)
    programs = compile_plan(
        plan, clip=options.clip_norm is not None, overlap=overlap_of(plan, options)
    )
    check_programs(programs)
    return programs


def overlap_of(plan: Plan, options: ExecutionOptions) -> Overlap | None:
    """Give how gradients are cut up that are synchronized beside the backward, if they are."""
    if options.overlap_sync or plan.overlap_sync:
        return Overlap.of(options.bucket_mb, options.dtype)
    return None


def _check_plan(plan: Plan, *, is_brought: bool) -> None:
    """Refuse what only the simulator does so far."""
    if plan.shard_parameters and is_brought:
        raise PlanError(
            "the plan has sharded parameters (ZeRO-3), which can be simulated, but not run yet with"
            " modules of your own; simulate it, or make a plan of another strategy, such as spindle"
        )


def _check_options(options: ExecutionOptions) -> None:
    if options.dtype not in DTYPES:
        raise UsageError(f"no dtype {options.dtype!r}: they are {', '.join(DTYPES)}")
    _check_checkpoints(options)
    if options.clip_norm is not None and not options.clip_norm > 0:
        raise UsageError(f"--clip-norm {options.clip_norm}: give a norm above 0")
    if not options.bucket_mb > 0:
        raise UsageError(f"--bucket-mb {options.bucket_mb}: give a size above 0")
    if options.autocast is None:
        return
    if options.autocast not in AUTOCASTS:
        raise UsageError(f"no autocast {options.autocast!r}: there is {', '.join(AUTOCASTS)}")
    if options.dtype != "float32":
        raise UsageError(
            f"--autocast {options.autocast} keeps parameters in float32, and --dtype is"
            f" {options.dtype}: give one of the two"
        )
    if options.emulate:
        raise UsageError(
            f"--autocast {options.autocast}: an emulated run computes nothing; leave one out"
        )


def _check_checkpoints(options: ExecutionOptions) -> None:
    asked = options.checkpoints
    if options.emulate and (asked.folder is not None or asked.resume is not None):
        raise UsageError("--emulate trains nothing: leave --checkpoint and --resume out")
    for name, number in (
        ("--checkpoint-every", asked.every),
        ("--checkpoint-keep", asked.keep),
        ("--until-step", asked.until_step),
    ):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number}: give a number from 1 on")
        if number is not None and asked.folder is None and name != "--until-step":
            raise UsageError(f"{name} {number}: say where, with --checkpoint FOLDER")
