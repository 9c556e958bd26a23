"""A process that must end: it is waited for so long, and ends with whoever started it."""

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["STEADY_MEMORY", "end_with_parent", "run_child", "tidy_end"]

_GRACE_S = 20.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

# What a rank frees it needs again in the next iteration: glibc is to keep it. Else large tensors
# are given back to the system and their pages made anew each time, 5 % of an iteration of 0.6 s.
STEADY_MEMORY = (
    "env",
    "MALLOC_MMAP_MAX_=0",
    f"MALLOC_TRIM_THRESHOLD_={2**33}",
    f"MALLOC_TOP_PAD_={2**26}",
)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent is gone (Linux; else nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(number))


@contextmanager
def tidy_end() -> Iterator[None]:
    """Leave by SystemExit where SIGTERM or SIGHUP would end the process with its files in place.

    Whoever handles or ignores them already goes on to; off the main thread nobody can.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    known = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    taken = [
        number
        for number in known
        if number is not None
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def run_child(command: Sequence[str], *, timeout_s: float) -> str:
    """Run a command to its end, or end it; give the last line that it said."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # an interrupt from the keyboard reaches this process alone
    )
    try:
        said, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"it didn't end within {timeout_s:.0f} s"
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child.stdout is not None:
            child.stdout.close()
    lines = said.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason is known")
