"""A split model's workload as a file, for `spindle plan` and other commands."""

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path

from spindle_sim.errors import UsageError
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.workload import Workload
from spindle_torch.api.arguments import kind_of

__all__ = ["save_workload"]


def save_workload(workload: Workload, path: Path | str) -> None:
    """Write a workload file: JSON, which is YAML as well.

    Raises:
        UsageError: it isn't a workload, or the path can't be written.
    """
    if not isinstance(workload, Workload):
        raise UsageError(
            f"save_workload got {kind_of(workload)}; give model.workload of a split model"
        )
    if not isinstance(path, str | PathLike):
        raise UsageError(f"save_workload: {path!r:.60} is no path; give the name of a file")
    text = json.dumps(asdict(workload), indent=1, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
