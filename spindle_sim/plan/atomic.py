"""Writing a file whole or not at all: aside in the same folder, to disk, then renamed over."""

import contextlib
import os
import secrets
from pathlib import Path

from spindle_sim.errors import Problem, UsageError

__all__ = ["write_atomically"]


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`; a reader sees the old file or the new one, never a part.

    Raises:
        UsageError: the folder doesn't exist, the path is a folder, or writing isn't allowed.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a directory")
        if target.exists() and not target.is_file():  # /dev/stdout, a pipe: nothing to rename
            target.write_bytes(content)
            return
        _write_aside(target, content)
    except OSError as error:
        raise UsageError(
            Problem(
                source=str(path),
                message=f"can't be written: {(error.strerror or str(error)).lower()};"
                " name a file in a folder that exists and that you may write to",
            )
        ) from error


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
