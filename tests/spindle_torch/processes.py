"""Looking at processes, those of a run above all (Linux)."""

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["commands", "ranks_of", "wait_for"]


def commands() -> dict[int, tuple[int, bytes]]:
    """Give the parent and the command line of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            found[int(path.name)] = int(fields[1]), (path / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
    return found


def marked(mark: str) -> list[int]:
    """Give the processes with a mark among their arguments; other tests run beside this one."""
    return [pid for pid, (_, line) in commands().items() if mark.encode() in line.split(b"\0")]


def ranks_of(launcher: int) -> set[int]:
    """Give the processes below a process that run `-m spindle_torch`."""
    processes = commands()
    found = set()
    for pid, (_, command) in processes.items():
        above = pid
        while above in processes and above != launcher:
            above = processes[above][0]
        if above == launcher and b"spindle_torch\0" in command and b"agent" not in command:
            found.add(pid)
    return found


def wait_for(found: Callable[[], set[int]], count: int) -> set[int]:
    """Wait until there are so many processes."""
    until_s = time.monotonic() + 60
    while len(pids := found()) != count:
        assert time.monotonic() < until_s, f"{len(pids)} ranks, expected {count}"
        time.sleep(0.1)
    return pids
