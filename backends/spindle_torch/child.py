"""A process that must end: it is waited for so long, and ends with whoever started it."""

import subprocess
from collections.abc import Sequence

__all__ = ["STEADY_MEMORY", "run_child"]

_GRACE_S = 20.0

# What a rank frees it needs again in the next iteration: glibc is to keep it. Else large tensors
# are given back to the system and their pages made anew each time, 5 % of an iteration of 0.6 s.
STEADY_MEMORY = (
    "env",
    "MALLOC_MMAP_MAX_=0",
    f"MALLOC_TRIM_THRESHOLD_={2**33}",
    f"MALLOC_TOP_PAD_={2**26}",
)


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
