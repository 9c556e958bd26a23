"""How a rank's end is told: its own fault, others', or a signal that comes while it is held."""

import subprocess
import sys
from pathlib import Path
from signal import Signals

import pytest
import torch
import torch.distributed as dist

from spindle_torch.agent import _killed
from spindle_torch.outcome import FailureKind, first_cause, read_failures
from spindle_torch.process import _failure
from spindle_torch.worker import Situation

WAITING = Situation(rank=1)  # for the others, to begin


class _AtWork(Situation):
    @property
    def is_waiting(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("error", "at_work", "waiting"),
    [
        (ArithmeticError("planted"), FailureKind.RAISED, FailureKind.RAISED),
        (RuntimeError("[gloo] Connection closed by peer"), FailureKind.LOST, FailureKind.LOST),
        (dist.DistBackendError("NCCL error: remote process exited"), *[FailureKind.LOST] * 2),
        # Kernels run later than they are called: where the host waits for others, or for them.
        (torch.AcceleratorError("CUDA error: device-side assert"), *[FailureKind.RAISED] * 2),
        (torch.OutOfMemoryError("CUDA out of memory"), FailureKind.RAISED, FailureKind.RAISED),
        (RuntimeError("shapes differ"), FailureKind.RAISED, FailureKind.LOST),
    ],
)
def test_what_a_rank_did_itself_is_told_from_what_others_did(
    error: Exception, at_work: FailureKind, waiting: FailureKind
) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    assert _failure(raised.value, WAITING).kind is waiting
    assert _failure(raised.value, _AtWork(rank=1)).kind is at_work


def test_ranks_that_the_watchdog_of_nccl_aborts_are_not_the_cause() -> None:
    aborted = _killed(0, Signals.SIGABRT, late=False)
    assert aborted.kind is FailureKind.LOST
    assert "as NCCL does where others are gone" in str(aborted)
    died = _killed(3, Signals.SIGSEGV, late=False)
    assert first_cause((aborted, died)) is died
    assert first_cause((aborted,)) is aborted
    assert str(died) == "rank 3: was killed by SIGSEGV"
    assert "couldn't be ended but by SIGKILL" in str(_killed(3, Signals.SIGKILL, late=True))


HELD = """
import ctypes, os, signal, sys, threading
from pathlib import Path
from spindle_torch.process import _tell_when_ended
from spindle_torch.worker import Situation

class AtWork(Situation):
    is_waiting = property(lambda self: sys.argv[2] == "waiting")

_tell_when_ended(Path(sys.argv[1]), AtWork(rank=1))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex, pthread = ctypes.create_string_buffer(64), ctypes.CDLL(None)
pthread.pthread_mutex_lock(mutex)
pthread.pthread_mutex_lock(mutex)  # for ever: no signal interrupts it, as none does a GPU's wait
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of another size")
@pytest.mark.parametrize("place", ["working", "waiting"])
def test_a_rank_that_is_held_in_foreign_code_ends_on_sigterm_all_the_same(
    tmp_path: Path, place: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(tmp_path), place],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 128 + Signals.SIGTERM, done.stderr
    failures = read_failures(tmp_path)
    assert [item.kind for item in failures] == ([FailureKind.STALLED] if place == "working" else [])
