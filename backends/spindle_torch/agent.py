"""torchrun as a process that tells how its ranks ended: `python -m spindle_torch.agent`.

Its first argument is the folder for what failed, the others are torchrun's.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from spindle_sim.errors import ExecutionError
from spindle_torch.child import end_with_parent  # not from `process`, which takes a second
from spindle_torch.outcome import Failure, FailureKind, write_failure

__all__ = ["main"]

_SHUTDOWN_S = 5.0  # that ranks have to end once one has failed
_LOOK_EVERY_S = 0.5


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; give 0, or the exit code of a failed execution."""
    # With SIGTERM torchrun ends its ranks before itself.
    end_with_parent(signal.SIGTERM)
    folder = Path(arguments[0])
    Thread(target=_end_who_hangs, args=(folder,), daemon=True).start()
    # Without a folder for its logs torchrun makes one, and leaves it.
    logs = f"--log-dir={folder / 'ranks'}"
    try:
        torchrun([logs, *arguments[1:]])
    except ChildFailedError as error:
        late = _seconds_since_first_failure(folder) >= _SHUTDOWN_S
        for rank, failure in error.failures.items():
            # A rank that exits has said why; SIGTERM is how torchrun ends the others.
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
                write_failure(folder, _killed(rank, signal.Signals(-failure.exitcode), late=late))
        return ExecutionError.exit_code
    return 0


def _killed(rank: int, number: signal.Signals, *, late: bool) -> Failure:
    """Say how a signal ended a rank; `late` is some time after the first failure."""
    kind, message = FailureKind.DIED, f"was killed by {number.name}"
    if number is signal.SIGKILL and late:  # that is how those end whom SIGTERM doesn't
        message = "didn't go on, and couldn't be ended but by SIGKILL"
    if number is signal.SIGABRT:
        # torch's watchdog of NCCL ends the process so: mostly of those who did nothing wrong.
        kind = FailureKind.LOST
        message = (
            "was aborted (SIGABRT), as NCCL does where others are gone or don't come in time, or"
            " where its GPU failed"
        )
    return Failure(rank=rank, kind=kind, message=message, exit_code=ExecutionError.exit_code)


def _end_who_hangs(folder: Path) -> None:
    """Kill the ranks that are left some time after the first one failed.

    torchrun, too, kills whom SIGTERM doesn't end, but only half a minute later.
    """
    while _seconds_since_first_failure(folder) < _SHUTDOWN_S:
        time.sleep(_LOOK_EVERY_S)
    for pid in _children(os.getpid()):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    """Give the processes that a process has started (Linux; else none)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _seconds_since_first_failure(folder: Path) -> float:
    """Give how long ago the first rank said why it failed; 0 if none has."""
    times = [path.stat().st_mtime for path in folder.glob("*-*.json")]
    return time.time() - min(times) if times else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
