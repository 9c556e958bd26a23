"""Writing a file whole or not at all: aside in the same folder, to disk, then renamed over.

A stream (a pipe, a terminal, /dev/stdout) has no old content to keep: it is written directly.
"""

import contextlib
import os
import re
import secrets
import sys
from pathlib import Path

from spindle_sim.errors import Problem, UsageError

__all__ = ["stream_descriptor", "write_atomically"]

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`; a reader sees the old file or the new one, never a part.

    Raises:
        UsageError: the folder doesn't exist, the path is a folder, or writing isn't allowed.
        BrokenPipeError: the path is a pipe whose reader went away.
    """
    try:
        _write(Path(path), content)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            Problem(
                source=f"{path!s:.200}",
                message=f"can't be written: {reason.lower()};"
                " name a file in a folder that exists and that you may write to",
            )
        ) from error


def stream_descriptor(path: Path | str) -> int | None:
    """Give the number of the open descriptor that a path such as /dev/stdout stands for, if any."""
    text = os.path.normpath(path)
    match = _DESCRIPTOR.fullmatch(text)
    return int(match[1]) if match else _STREAMS.get(text)


def _write(path: Path, content: bytes) -> None:
    descriptor = stream_descriptor(path)
    if descriptor is not None:
        # Through a copy of the descriptor itself: a file opened anew would begin at its start.
        sys.stdout.flush()
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(content)
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "is a directory")
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    _write_aside(target, content)


def _write_aside(target: Path, content: bytes) -> None:
    aside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        # Not tempfile: its files are private, and the rename would keep that.
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            aside.chmod(target.stat().st_mode & 0o777)
        aside.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
