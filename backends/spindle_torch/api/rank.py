"""One rank of a run that a user's script started, by running the script up to its `train`.

`python -m spindle_torch.api.rank SCRIPT ARGUMENTS... -- OPTIONS...`, the options those of
`python -m spindle_torch`. To be started by `train`, which puts torchrun between.
"""

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from spindle_sim.errors import UsageError
from spindle_torch.api.assignment import ASSIGNMENT, Assignment
from spindle_torch.process import main as run_rank
from spindle_torch.work import Work
from spindle_torch.worker import Situation, WorkerOptions

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Run the script as one rank."""
    end = len(arguments) - 1 - list(reversed(arguments)).index("--")
    script, *own = arguments[:end]

    def run(
        options: WorkerOptions,
        situation: Situation,
        wrap: Callable[[Work], Work],
        tell: Callable[[str], None],
    ) -> None:
        ASSIGNMENT.set(Assignment(options=options, situation=situation, wrap=wrap, tell=tell))
        sys.argv[:] = [script, *own]
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
        raise UsageError(f"{script}: came to its end without `train`, for which it was started")

    run_rank(arguments[end + 1 :], run=run)


if __name__ == "__main__":
    main(sys.argv[1:])
