"""Ranks as forks of one process that has imported torch: sixteen are ready as soon as one is.

Importing torch takes a core some seconds. They meet at a store that the parent keeps.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from spindle_sim.errors import ExecutionError
from spindle_torch.child import tidy_end
from spindle_torch.outcome import Failure, FailureKind, write_failure
from spindle_torch.process import end_with_parent

__all__ = ["run_forked"]

_HOST = "127.0.0.1"
_SHUTDOWN_S = 5.0  # that ranks have to end once one has failed
_LOOK_EVERY_S = 0.05


def run_forked(folder: Path, count: int, run: Callable[[int, Store], None]) -> int:
    """Run `count` ranks to their end and give 0, or the exit code of a failed execution.

    Each is told its number and the store at which they meet. What fails is left in `folder`. No
    thread may have been started before.
    """
    listener = socket.create_server((_HOST, 0), backlog=count)
    port = listener.getsockname()[1]
    ranks: dict[int, int] = {}
    with tidy_end():
        try:
            for rank in range(count):
                pid = os.fork()
                if not pid:
                    _be_rank(folder, rank, port, run)
                ranks[pid] = rank
            store = TCPStore(
                _HOST,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            code = _awaited(folder, ranks)
            del store  # only now: the ranks have used it to the end
        finally:
            _kill(ranks)
    return code


def _be_rank(folder: Path, rank: int, port: int, run: Callable[[int, Store], None]) -> None:
    """Be a rank, and end the process with it."""
    code = 0
    try:
        end_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run(rank, TCPStore(_HOST, port, is_master=False))
    except BaseException as error:  # the last line of defence: the launcher wants to know
        text, code = " ".join(str(error).split()), ExecutionError.exit_code
        # torch has no class of its own for what gloo reports.
        lost = isinstance(error, dist.DistError) or "gloo" in text.casefold()
        kind = FailureKind.LOST if lost else FailureKind.RAISED
        write_failure(folder, Failure(rank=rank, kind=kind, message=text, exit_code=code))
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not exit(): what the parent meant to do at its end is not a rank's


def _awaited(folder: Path, ranks: dict[int, int]) -> int:
    """Wait for all ranks, taking out those that have ended; none outlives a failed one for long."""
    code, until_s = 0, float("inf")
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG if code else 0)
        if not pid:
            if time.monotonic() > until_s:
                _kill(ranks)
            time.sleep(_LOOK_EVERY_S)
            continue
        rank = ranks.pop(pid)
        if status and not code:
            code, until_s = ExecutionError.exit_code, time.monotonic() + _SHUTDOWN_S
        if os.WIFSIGNALED(status) and time.monotonic() < until_s:
            name = signal.Signals(os.WTERMSIG(status)).name
            message = f"was killed by {name}"
            died = Failure(rank=rank, kind=FailureKind.DIED, message=message, exit_code=code)
            write_failure(folder, died)
    return code


def _kill(ranks: dict[int, int]) -> None:
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
