"""A rank for tests that kills itself: `killing.py RANK WHERE COUNT PLAN [options]`, by torchrun.

WHERE is "work": at the COUNTth call of what computes; "disk": at the COUNTth time that something is
to be on the disk, which of every second file only a half is.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from spindle_torch.process import main
from spindle_torch.work import Work


class Mortal:
    """The work of a rank, which ends with its process at one of its calls."""

    def __init__(self, work: Work, last: int) -> None:
        self.work = work
        self.last = last
        self.calls = count(1)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.work, name)
        if callable(found) and next(self.calls) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def mortal_fsync(last: int) -> Callable[[int], None]:
    calls, to_disk = count(1), os.fsync

    def fsync(descriptor: int) -> None:
        if next(calls) == last:
            size_bytes = os.fstat(descriptor).st_size
            if last % 2 and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.ftruncate(descriptor, size_bytes // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        to_disk(descriptor)

    return fsync


if __name__ == "__main__":
    rank, where, number, *arguments = sys.argv[1:]
    if os.environ["RANK"] != rank:
        main(arguments)
    elif where == "disk":
        os.fsync = mortal_fsync(int(number))  # type: ignore[assignment]
        main(arguments)
    else:
        main(arguments, lambda work: Mortal(work, int(number)))
