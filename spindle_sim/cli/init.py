"""`spindle init`: a commented workload file to start from."""

from importlib.resources import files
from typing import Annotated

import typer

from spindle_sim.cli.inputs import exists
from spindle_sim.errors import UsageError

__all__ = ["init"]


def init(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write.")
    ] = "workload.yaml",
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented example workload to start from."""
    from spindle_sim.plan.atomic import write_atomically

    if not path.strip():
        raise UsageError(f"{path!r}: expected the name of a file")
    if not force and exists(path):
        raise UsageError(f"{path} exists already; name another file, or replace it with --force")
    write_atomically(path, (files("spindle_sim.cli") / "starter.yaml").read_bytes())
    print(f"{path}: edit it, then run: spindle compare {path}")
