"""The terminal: data on stdout, progress on stderr, colour only where it is wanted."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Advance", "new_table", "print_json", "progress", "stdout_console"]

_PROGRESS_AFTER_S = 1.0
_LINE_EVERY_S = 30.0
_PIPE_COLUMNS = 160  # wide enough for every table here: a pipe has no edge to wrap at


# Called with what is being done now; the step before it is then done.
Advance = Callable[[str], None]


def stdout_console() -> "Console":
    """Give the console for data; it follows NO_COLOR and has no colour in a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def new_table(title: str, *columns: str) -> "Table":
    """Give an empty table: the first column names the row, the others hold figures."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def print_json(value: object) -> None:
    """Print one JSON object; a figure that isn't finite is a bug and fails."""
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


@contextmanager
def progress(num_steps: int, *, in_logs: bool = True) -> Iterator[Advance]:
    """Show a progress bar on stderr once the work has lasted a second.

    Where stderr is no terminal (a log), a line half a minute apart says how far it is, however long
    a step lasts; without `in_logs` nothing does. Of a single step no share can be told.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr, markup=False)
    if not console.is_terminal:
        with _lines(num_steps, _LINE_EVERY_S if in_logs else None) as lines:
            yield lines
        return
    bar = Progress(console=console, transient=True)
    task = bar.add_task("", total=num_steps if num_steps > 1 else None)
    begun = False

    def advance(description: str) -> None:
        nonlocal begun
        bar.update(task, advance=1 if begun else 0, description=description)
        begun = True

    timer = threading.Timer(_PROGRESS_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _lines(num_steps: int, every_s: float | None) -> Iterator[Advance]:
    now, done = "", -1
    ended = threading.Event()

    def advance(description: str) -> None:
        nonlocal now, done
        now, done = description, done + 1

    if every_s is None:
        yield advance
        return

    def tell() -> None:
        while not ended.wait(every_s):
            if now:
                print(f"{done} of {num_steps} done; now: {now}", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield advance
    finally:
        ended.set()
        teller.join()
