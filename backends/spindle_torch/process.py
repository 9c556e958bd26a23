"""A rank as a process: its arguments, and an end that others can tell from its exit code."""

import argparse
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist

from spindle_sim.backend import CheckpointOptions, ExecutionOptions
from spindle_sim.errors import ExecutionError, SpindleError
from spindle_torch.child import end_with_parent
from spindle_torch.outcome import NOTES_NAME, Failure, FailureKind, write_failure
from spindle_torch.work import Work
from spindle_torch.worker import Situation, WorkerOptions, run_worker

__all__ = ["end_with_parent", "main", "wake_in_time"]

Run = Callable[[WorkerOptions, Situation, Callable[[Work], Work], Callable[[str], None]], object]
_TIMER_SLACK = 29  # PR_SET_TIMERSLACK
_HANDLED_S = 1.0  # within which Python comes to handle a signal, unless it is held


def main(
    arguments: Sequence[str],
    wrap: Callable[[Work], Work] = lambda work: work,
    run: Run = run_worker,
) -> None:
    """Run one rank and end the process if it fails, at once: others may never answer again.

    `run` is what it does in place of `run_worker`, with the same arguments.
    """
    options = _parser().parse_args(arguments)
    if options.end_with_parent:
        end_with_parent(signal.SIGKILL)
    situation = Situation()
    if options.status is not None:
        _tell_when_ended(options.status, situation)
    try:
        run(_worker_options(options), situation, wrap, _teller(options.status))
    except SpindleError as error:
        failure = Failure(
            rank=situation.rank,
            kind=FailureKind.REFUSED,
            message="; ".join(str(problem) for problem in error.problems),
            exit_code=error.exit_code,
        )
    except Exception as error:  # the last line of defence: the launcher wants to know
        failure = _failure(error, situation)
    else:
        return
    sys.stderr.write(f"error: {failure}\n")
    sys.stderr.flush()
    if options.status is not None:
        write_failure(options.status, failure)
    os._exit(failure.exit_code)  # not exit(): a group with a dead peer may never be taken down


def wake_in_time() -> None:
    """Have the kernel end this thread's sleeps without the usual slack of 50 us (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1)


def _tell_when_ended(folder: Path, situation: Situation) -> None:
    """Have a rank that is ended by SIGTERM say so if it was at work, and waited for nobody.

    Python handles signals between its own instructions. A rank that waits for a GPU, whose kernels
    of NCCL wait for others, comes to no more of them: another thread ends it then.
    """

    def tell() -> None:
        if not situation.is_waiting:
            stalled = Failure(
                rank=situation.rank,
                kind=FailureKind.STALLED,
                message=f"was still in {situation} when others had waited for too long",
                exit_code=ExecutionError.exit_code,
            )
            write_failure(folder, stalled)

    def end(number: int, frame: object) -> None:
        del frame
        tell()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def end_who_is_held() -> None:
        while os.read(told, 1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(_HANDLED_S)
        tell()
        os._exit(128 + signal.SIGTERM)

    told, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, end)
    Thread(target=end_who_is_held, daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    defaults = ExecutionOptions()
    parser = argparse.ArgumentParser(
        prog="python -m spindle_torch", description="One rank of a plan's run, under torchrun."
    )
    parser.add_argument("plan", type=Path, help="the plan file, the same for all ranks")
    parser.add_argument("--output", type=Path, help="file for the result, written by rank 0")
    parser.add_argument("--iterations", type=int, default=defaults.iterations)
    parser.add_argument("--emulate", action="store_true", help="wait instead of computing")
    parser.add_argument("--time-scale", type=float, default=defaults.time_scale)
    parser.add_argument("--dtype", choices=("float32", "float64"), default=defaults.dtype)
    parser.add_argument("--autocast", choices=("bf16",), help="compute and send in it")
    parser.add_argument("--clip-norm", type=float, help="largest norm of all gradients")
    parser.add_argument("--overlap-sync", action="store_true", help="beside the backward")
    parser.add_argument("--bucket-mb", type=float, default=defaults.bucket_mb, help="of gradients")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--timeout", type=float, default=defaults.timeout_s, help="seconds")
    parser.add_argument("--checkpoint", help="folder to save training in")
    parser.add_argument("--checkpoint-every", type=int, help="steps; else at the end only")
    parser.add_argument("--checkpoint-keep", type=int, help="how many stay; else all")
    parser.add_argument("--resume", help="folder to go on from: the latest in it, or just one")
    parser.add_argument("--until-step", type=int, help="end after this step, not --iterations")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--status", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    return parser


def _worker_options(options: argparse.Namespace) -> WorkerOptions:
    return WorkerOptions(
        plan=options.plan,
        output=options.output,
        device=options.device,
        execution=ExecutionOptions(
            iterations=max(1, options.iterations),
            emulate=options.emulate,
            time_scale=options.time_scale,
            dtype=options.dtype,
            autocast=options.autocast,
            clip_norm=options.clip_norm,
            overlap_sync=options.overlap_sync,
            bucket_mb=options.bucket_mb,
            seed=options.seed,
            timeout_s=options.timeout,
            checkpoints=CheckpointOptions(
                folder=options.checkpoint,
                every=options.checkpoint_every,
                keep=options.checkpoint_keep,
                resume=options.resume,
                until_step=options.until_step,
            ),
        ),
    )


def _teller(status: Path | None) -> Callable[[str], None]:
    """Give what tells the user something while the run goes on: through the launcher, or itself."""

    def tell(note: str) -> None:
        if status is None:
            sys.stderr.write(f"note: {note}\n")
            return
        with (status / NOTES_NAME).open("a", encoding="utf-8") as stream:
            stream.write(f"{note}\n")

    return tell


def _failure(error: Exception, situation: Situation) -> Failure:
    text = " ".join(str(error).split()) or type(error).__name__
    lost = _has_lost_others(error, situation)
    if lost:
        message = f"lost the others in {situation}: {text}"
    else:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"{type(error).__name__} in {situation}: {text} ({Path(place.filename).name}:"
            f"{place.lineno})"
        )
    return Failure(
        rank=situation.rank,
        kind=FailureKind.LOST if lost else FailureKind.RAISED,
        message=message,
        exit_code=ExecutionError.exit_code,
    )


def _has_lost_others(error: Exception, situation: Situation) -> bool:
    """Tell whether an error is one of communication, not of what the rank itself computed."""
    # What a GPU did wrong comes to light where the host next waits for it. Newer versions of torch
    # have a class for that.
    own = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    if isinstance(error, own) or not isinstance(error, RuntimeError):
        return False
    # torch has no class of its own for what gloo reports.
    return situation.is_waiting or isinstance(error, dist.DistError) or "gloo" in str(error)
