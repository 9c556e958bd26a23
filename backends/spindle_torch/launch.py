"""Starts the ranks of a run through torchrun, waits, and gives the result or the one cause.

No torch in this process: the ranks and their agent are others.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from spindle_sim.backend import CheckpointOptions, Execution, ExecutionOptions
from spindle_sim.errors import ExecutionError, InputError, UsageError
from spindle_sim.plan import Plan, save_plan
from spindle_torch.checkpoint_folder import find_checkpoint
from spindle_torch.child import STEADY_MEMORY, tidy_end
from spindle_torch.outcome import NOTES_NAME, execution_from_json, first_cause, read_failures
from spindle_torch.requirements import check_requirements

__all__ = ["launch"]

_ENTRY = ("-m", "spindle_torch")
_GRACE_S = 20.0
_NOTES_S = 0.5


def launch(
    plan: Plan,
    options: ExecutionOptions,
    entry: Sequence[str] = _ENTRY,
    tell: Callable[[str], None] | None = None,
) -> Execution:
    """Run a plan with a process for each of its devices on this host.

    `entry` is what torchrun starts: a script of one's own in place of `-m spindle_torch`, which
    gets the same arguments. `tell` gets what there is to know meanwhile; without it
    stderr does.

    Raises:
        UsageError: torch isn't installed.
        InputError: with the default entry, as `check_requirements`; the checkpoint to go on from
            isn't whole, or not of such a model.
        ExecutionError: a rank failed; of all messages, the one that the others follow from.
    """
    if find_spec("torch") is None:
        raise UsageError("running a plan needs torch: pip install 'spindle-sim[torch]'")
    if tuple(entry) == _ENTRY:  # who brings an entry may bring modules for custom operators
        check_requirements(plan, options, {})
    if options.checkpoints.resume is not None:
        find_checkpoint(Path(options.checkpoints.resume))  # before anything starts
    with tidy_end(), tempfile.TemporaryDirectory(prefix="spindle-run-") as name:
        folder = Path(name)
        save_plan(plan, folder / "plan")
        log = folder / "log"
        notes = _Notes(folder / NOTES_NAME, tell or _tell)
        exit_code = _supervise(_command(plan, options, entry, folder), log, notes)
        result = folder / "result"
        if exit_code == 0 and result.exists():
            return execution_from_json(result.read_text(encoding="utf-8"))
        cause = first_cause(read_failures(folder))
        if cause is not None and cause.exit_code == InputError.exit_code:
            raise InputError(str(cause))
        if cause is not None and cause.exit_code == UsageError.exit_code:
            raise UsageError(str(cause))
        why = f"the ranks couldn't be run: {_last_line(log)}" if cause is None else str(cause)
        raise ExecutionError(why + _way_on(options.checkpoints))


def _tell(note: str) -> None:
    sys.stderr.write(f"note: {note}\n")
    sys.stderr.flush()


class _Notes:
    """Passes on what the ranks write into a file, line by line."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path, self.tell, self.told = path, tell, 0

    def pass_on(self) -> None:
        """Tell the lines that are new."""
        if self.path.exists():
            *lines, _ = self.path.read_text(encoding="utf-8").split("\n")
            for line in lines[self.told :]:
                self.tell(line)
            self.told = len(lines)


def _way_on(options: CheckpointOptions) -> str:
    """Say where to go on, if anything was saved."""
    if options.folder is None:
        return ""
    try:
        found = find_checkpoint(Path(options.folder))
    except InputError:
        return "; no checkpoint had been saved"
    return f"; {found.folder} is whole: go on with --resume {options.folder}"


def _command(
    plan: Plan, options: ExecutionOptions, entry: Sequence[str], folder: Path
) -> list[str]:
    return [
        *STEADY_MEMORY,
        sys.executable,
        "-m",
        "spindle_torch.agent",
        str(folder),
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={plan.cluster.num_devices}",
        *entry,
        str(folder / "plan"),
        f"--output={folder / 'result'}",
        f"--status={folder}",
        "--end-with-parent",
        f"--iterations={options.iterations}",
        f"--time-scale={options.time_scale}",
        f"--dtype={options.dtype}",
        f"--seed={options.seed}",
        f"--timeout={options.timeout_s}",
        *([] if options.autocast is None else [f"--autocast={options.autocast}"]),
        *([] if options.clip_norm is None else [f"--clip-norm={options.clip_norm}"]),
        *(["--overlap-sync"] if options.overlap_sync else []),
        f"--bucket-mb={options.bucket_mb}",
        *(["--emulate"] if options.emulate else []),
        *_checkpoint_arguments(options.checkpoints),
    ]


def _checkpoint_arguments(options: CheckpointOptions) -> list[str]:
    given = {
        "--checkpoint": options.folder,
        "--checkpoint-every": options.every,
        "--checkpoint-keep": options.keep,
        "--resume": options.resume,
        "--until-step": options.until_step,
    }
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _supervise(command: Sequence[str], log: Path, notes: _Notes) -> int:
    """Give the agent's exit code; if this process is interrupted, the agent ends its ranks."""
    with log.open("wb") as stream:
        # In a session of its own: an interrupt from the keyboard reaches this process alone.
        agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                notes.pass_on()
                try:
                    return agent.wait(_NOTES_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            notes.pass_on()
            if agent.poll() is None:
                agent.terminate()
                try:
                    agent.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    agent.kill()  # its ranks end with it
                    agent.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason is known")
