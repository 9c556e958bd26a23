"""Tables in a terminal of any width: a figure is never cut off.

What is too wide is split: the last columns, which matter least, go to a second table. Where two
tables aren't enough, each row is a block of "name: value" lines.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

__all__ = ["print_table"]

_MOST_TABLES = 2
_ANY_WIDTH = 100_000


def print_table(console: "Console", table: "Table", num_names: int = 1) -> None:
    """Print a table whose first `num_names` columns name the row, in as many parts as it needs."""
    parts = _parts(console, table, num_names)
    if len(parts) <= _MOST_TABLES and all(_fits(console, part) for part in parts):
        for part in parts:
            console.print(part)
        return
    if table.title:
        console.print(table.title, style=table.title_style, soft_wrap=True)
    for line, style in _blocks(table, num_names):
        console.print(line, style=style, soft_wrap=True)
    console.print()


def _fits(console: "Console", table: "Table") -> bool:
    from rich.measure import Measurement

    wanted = Measurement.get(console, console.options.update(width=_ANY_WIDTH), table)
    return wanted.maximum <= console.width


def _parts(console: "Console", table: "Table", num_names: int) -> list["Table"]:
    """Give tables of the same rows, each with as many of the columns, in order, as fit."""
    if _fits(console, table):
        return [table]
    names, figures = table.columns[:num_names], table.columns[num_names:]
    parts: list[Table] = []
    taken: list[Column] = []
    for column in figures:
        if taken and not _fits(console, _part(table, names, [*taken, column], first=not parts)):
            parts.append(_part(table, names, taken, first=not parts))
            taken = []
        taken.append(column)
    return [*parts, _part(table, names, taken, first=not parts)]


def _part(
    table: "Table", names: Sequence["Column"], figures: Sequence["Column"], *, first: bool
) -> "Table":
    from rich.table import Table

    part = Table(
        title=table.title if first else None,
        title_justify=table.title_justify,
        title_style=table.title_style,
        box=table.box,
    )
    for column in (*names, *figures):
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for index, row in enumerate(table.rows):
        cells = [str(list(column.cells)[index]) for column in (*names, *figures)]
        if first or any(cells[len(names) :]):  # a row without a plan has nothing more to say
            part.add_row(*cells, style=row.style)
    return part


def _blocks(table: "Table", num_names: int) -> Iterator[tuple[str, "str | None"]]:
    columns = [
        (str(column.header), [str(cell) for cell in column.cells]) for column in table.columns
    ]
    for index, row in enumerate(table.rows):
        style = row.style if isinstance(row.style, str) else None
        name = ", ".join(cells[index] for _, cells in columns[:num_names])
        figures = [(header, cells[index]) for header, cells in columns[num_names:] if cells[index]]
        if len(figures) == 1 and not figures[0][0]:
            yield f"{name}: {figures[0][1]}", style
            continue
        yield name, style
        for header, cell in figures:
            yield f"  {header}: {cell}" if header else f"  {cell}", style
