"""The command line in this process: streams and exit code as a process of its own has them."""

import io
import os
import signal
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from spindle_sim.cli import main

__all__ = ["spindle"]


def spindle(
    *arguments: str, cwd: Path | None = None, encoding: str = "utf-8", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the way in that the console script has; importing takes longer than most commands."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    before = signal.getsignal(signal.SIGINT)
    try:
        with (
            chdir(cwd or Path()),
            mock.patch.dict(os.environ, environment),
            redirect_stdout(streams[0]),
            redirect_stderr(streams[1]),
        ):
            code = _exit_code(arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    printed, told = (_text(stream) for stream in streams)
    return subprocess.CompletedProcess(["spindle", *arguments], code, printed, told)


def _exit_code(arguments: tuple[str, ...]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return cast(io.BytesIO, stream.buffer).getvalue().decode(stream.encoding)
