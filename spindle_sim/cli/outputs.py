"""The files that a verb will write: refused before any work where they can't be written."""

import tempfile
from pathlib import Path

from spindle_sim.errors import UsageError

__all__ = ["check_outputs"]


def check_outputs(**paths: str | None) -> None:
    """Make sure that each file can be written; the keys are the options' names.

    Raises:
        UsageError: one can't, or two are the same.
    """
    given = {f"--{name}": Path(path) for name, path in paths.items() if path is not None}
    problems = [
        f"{option} {path}: {reason}" for option, path in given.items() if (reason := _reason(path))
    ]
    if len({path.resolve() for path in given.values()}) < len(given):
        problems.append(f"{' and '.join(given)} name the same file")
    if problems:
        raise UsageError(*problems)


def _reason(path: Path) -> str:
    """Say why a file can't be written; "" where it can."""
    if path.is_dir():
        return "is a directory, expected a file"
    if path.exists() and not path.is_file():
        return ""  # a pipe or a terminal
    folder = path.resolve().parent
    if not folder.is_dir():
        return f"there is no directory {path.parent}"
    try:
        # Tried, not asked: permission bits say nothing of read-only file systems.
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"can't write in {path.parent}: {error.strerror}"
