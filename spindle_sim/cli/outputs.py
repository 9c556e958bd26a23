"""The files that a verb will write: refused before any work where they can't be written."""

import tempfile
from collections.abc import Collection
from pathlib import Path

from spindle_sim.errors import UsageError

__all__ = ["check_folder", "check_outputs", "is_stdout"]


def check_outputs(inputs: Collection[str | None] = (), **paths: str | None) -> None:
    """Make sure that each file can be written; the keys are the options' names.

    `inputs` are the arguments that may name files to read; None and other words are fine.

    Raises:
        UsageError: one can't be written, two are the same, or one would replace an input.
    """
    given = {f"--{name}": path for name, path in paths.items() if path is not None}
    problems = [
        f"{option} {path or repr(path):.200}: {reason}"
        for option, path in given.items()
        if (reason := _reason(path, [name for name in inputs if name]))
    ]
    if not problems and len({Path(path).resolve() for path in given.values()}) < len(given):
        problems.append(f"{' and '.join(given)} name the same file")
    if problems:
        raise UsageError(*problems)


def check_folder(option: str, path: str | None) -> None:
    """Make sure that a folder is there or can be made, and takes files.

    Raises:
        UsageError: it can't.
    """
    if path is None:
        return
    try:
        there = next(
            place for place in (Path(path), *Path(path).resolve().parents) if place.exists()
        )
        if there.is_dir():
            with tempfile.TemporaryFile(dir=there):
                return
        reason = f"{there} is a file, not a folder"
    except OSError as error:
        reason = f"can't be written to: {(error.strerror or str(error)).lower()}"
    except ValueError as error:  # a NUL in the name
        reason = f"can't be written to: {error}"
    raise UsageError(f"{option} {path:.200}: {reason}")


def is_stdout(path: str) -> bool:
    """Tell whether what is written to the path comes out at stdout, among what is printed."""
    from spindle_sim.plan.atomic import stream_descriptor

    return stream_descriptor(path) == 1


def _reason(text: str, inputs: Collection[str]) -> str:
    """Say why a file can't be written; "" where it can."""
    from spindle_sim.plan.atomic import stream_descriptor

    path = Path(text)
    if not text.strip():
        return "expected the name of a file"
    if stream_descriptor(path) is not None:
        return ""
    try:
        if path.is_dir():
            return "is a directory, expected a file"
        if path.exists() and not path.is_file():
            return ""  # a pipe or a terminal
        if any(_same(path, name) for name in inputs):
            return "is also what is read; name another file"
        folder = path.resolve().parent
        if not folder.is_dir():
            return f"there is no directory {path.parent}"
        # Tried, not asked: permission bits say nothing of read-only file systems.
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"can't be written: {(error.strerror or str(error)).lower()}"
    except ValueError as error:  # a NUL in the name
        return f"can't be written: {error}"


def _same(path: Path, name: str) -> bool:
    try:
        return path.samefile(name)
    except (OSError, ValueError):  # one of them isn't there
        return False
