"""A split model's workload as a file, for `spindle plan` and other commands."""

import json
from dataclasses import asdict
from pathlib import Path

from spindle_sim.plan.atomic import write_atomically
from spindle_sim.workload import Workload

__all__ = ["save_workload"]


def save_workload(workload: Workload, path: Path | str) -> None:
    """Write a workload file: JSON, which is YAML as well.

    Raises:
        UsageError: the path can't be written.
    """
    text = json.dumps(asdict(workload), indent=1, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
