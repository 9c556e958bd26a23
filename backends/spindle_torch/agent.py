"""torchrun as a process that tells how its ranks ended: `python -m spindle_torch.agent`.

Its first argument is the folder for what failed, the others are torchrun's.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from spindle_sim.errors import ExecutionError
from spindle_torch.outcome import Failure, FailureKind, write_failure
from spindle_torch.process import end_with_parent

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; give 0, or the exit code of a failed execution."""
    # With SIGTERM torchrun ends its ranks before itself.
    end_with_parent(signal.SIGTERM)
    folder = Path(arguments[0])
    try:
        torchrun(list(arguments[1:]))
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            # A rank that exits has said why; SIGTERM is how torchrun ends the others.
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
                name = signal.Signals(-failure.exitcode).name
                died = Failure(
                    rank=rank,
                    kind=FailureKind.DIED,
                    message=f"was killed by {name}",
                    exit_code=ExecutionError.exit_code,
                )
                write_failure(folder, died)
        return ExecutionError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
