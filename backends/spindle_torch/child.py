"""A process that must end: it is waited for so long, and ends with whoever started it."""

import subprocess
from collections.abc import Sequence

__all__ = ["run_child"]

_GRACE_S = 20.0


def run_child(command: Sequence[str], *, timeout_s: float) -> str:
    """Run a command to its end, or end it; give the last line that it said."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # an interrupt from the keyboard reaches this process alone
    )
    try:
        said, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"it didn't end within {timeout_s:.0f} s"
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child.stdout is not None:
            child.stdout.close()
    lines = said.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason is known")
