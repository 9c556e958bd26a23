"""The command `spindle`: a file per verb; each parses, calls the layers below and prints."""

import os
import signal

TYPE_CHECKING = False  # as checkers know it; whatever is imported here can't be interrupted well
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]

_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells expect


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run `spindle` with these arguments (else those of the process) and exit."""
    # An exception raised in the middle of an import would be a traceback, or lost.
    signal.signal(signal.SIGINT, _interrupted)
    from spindle_sim.cli.entry import main as run

    run(arguments)


def _interrupted(_number: int, _frame: "FrameType | None") -> None:
    os.write(2, b"interrupted\n")
    os._exit(_EXIT_INTERRUPTED)
