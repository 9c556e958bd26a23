"""The way in: runs the command line and turns every outcome into an exit code (docs/cli.md)."""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from spindle_sim.cli.application import application
from spindle_sim.errors import SpindleError

__all__ = ["EXIT_BUG", "EXIT_INTERRUPTED", "main"]

EXIT_BUG = 1
EXIT_NO_OUTPUT = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells expect
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells expect
_NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `spindle` with these arguments (else those of the process) and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name in a user's file may not exist in the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is None:  # closed (2>&-): print() would take stdout in its place
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (until the end)
    if sys.stdout is None:
        print("error: can't write the output: stdout is closed", file=sys.stderr)
        sys.exit(EXIT_NO_OUTPUT)
    code = _uninterrupted(list(sys.argv[1:] if arguments is None else arguments))
    if code == EXIT_INTERRUPTED:
        # Not sys.exit: where the interrupt fell into exec(), as dataclasses call it, the
        # interpreter would kill itself by the signal once more.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _uninterrupted(arguments: list[str]) -> int:
    """Give the exit code; an interrupt counts even where a library made something else of it."""
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(EXIT_INTERRUPTED)
        interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        code = _exit_code(arguments)
    except BaseException:
        if not interrupted:
            raise
    # From here on one more would only add a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if interrupted:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def _exit_code(arguments: list[str]) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`spindle ... | head`): nobody is left to tell.
        _drop_stdout()
        return EXIT_BROKEN_PIPE
    except SpindleError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("error: the process ran out of memory", file=sys.stderr)
        return EXIT_BUG
    except Exception as error:  # the last line of defence: no traceback unless asked for
        if isinstance(error, OSError) and error.errno in _NO_OUTPUT and error.filename is None:
            print(
                f"error: can't write the output: {os.strerror(error.errno or 0).lower()}",
                file=sys.stderr,
            )
            _drop_stdout()
            return EXIT_NO_OUTPUT
        _report_bug(error)
        return EXIT_BUG
    return code


def _drop_stdout() -> None:
    """Let what is still to be written vanish, else the interpreter fails at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        # Not standalone: the wrapper would hide a broken pipe and an interrupt from us.
        result = application()(args=arguments, prog_name="spindle", standalone_mode=False)
    except SystemExit as error:
        # typer's own answer to a broken pipe is exit code 1.
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    except Exception as error:
        if not _is_usage_error(error):
            raise
        error.show()  # type: ignore[attr-defined]
        return int(error.exit_code)  # type: ignore[attr-defined]
    return result if isinstance(result, int) else 0


def _is_usage_error(error: Exception) -> bool:
    """Tell whether the option parser refused the arguments.

    By the name: the class lies in `click` or in a private copy of it, as the version of typer is.
    """
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


def _report_bug(error: Exception) -> None:
    if os.environ.get("SPINDLE_TRACEBACK"):
        traceback.print_exception(error)
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    print(
        f"error: this is a bug in spindle: {summary}"
        " (set SPINDLE_TRACEBACK=1 to see where, and please report it)",
        file=sys.stderr,
    )
