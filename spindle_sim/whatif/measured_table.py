"""Tables of measured iterations: which columns a CSV file has, and what its cells may say."""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Literal, cast

from spindle_sim.cluster import GPUS
from spindle_sim.errors import InputError, Problem, UsageError, suggestion
from spindle_sim.estimate import software_model
from spindle_sim.planner.strategies.parallel import Recompute

__all__ = ["Configuration", "MeasuredRow", "MeasuredTable", "read_table"]

_MEASURED = "iteration_ms"
_ALIASES = {"measured_ms": _MEASURED}
_MAX_ROWS = 100_000
_MAX_BYTES = 64 * 2**20
_MAX_PROBLEMS = 20
_WHOLE = re.compile("0*[1-9][0-9]{0,8}")
_LEAST_MS, _MOST_MS = 1e-3, 1e9
_SHOWN = 40  # characters of a wrong cell
_ZERO_STAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a row says about model, parallelism, software and cluster.

    Fields with a default are optional columns; None leaves it to the setting of all rows, and
    `overlap_sync` to its software.
    """

    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tp: int
    dp: int
    pp: int
    chunks: int = 1
    recompute: Recompute = Recompute.FULL
    sequence_parallel: bool = False
    zero_stage: int = 0
    overlap_sync: bool | None = None
    attention: Literal["flash", "unfused"] | None = None
    vocabulary: int | None = None
    software: str | None = None
    gpu: str | None = None
    node_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured iteration; `line` is its line in the file."""

    line: int
    configuration: Configuration
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """The rows of a file, and the columns that were left alone."""

    rows: tuple[MeasuredRow, ...]
    ignored_columns: tuple[str, ...] = ()


class _Yes(StrEnum):
    TRUE = "true"
    FALSE = "false"


def read_table(path: Path | str) -> MeasuredTable:
    """Read a table of measured iterations: columns of `Configuration`, and iteration_ms.

    Lines that begin with # are comments, other columns are left alone. An empty cell of an optional
    column is one that isn't there.

    Raises:
        InputError: the file can't be read, or a row is wrong; with the problems found.
    """
    source = str(path)
    lines = _lines(Path(path))
    if not lines:
        raise InputError(Problem(source=source, message="has no rows, not even column names"))
    header = [_ALIASES.get(name.strip(), name.strip()) for name in _cells(lines[0][1])]
    if problems := list(_header_problems(header, source)):
        raise InputError(*problems)
    if len(lines) - 1 > _MAX_ROWS:
        raise InputError(
            Problem(source=source, message=f"has more than {_MAX_ROWS:,} rows; split it")
        )
    rows: list[MeasuredRow] = []
    for number, line in lines[1:]:
        given = [cell.strip() for cell in _cells(line)]
        cells = dict(zip(header, given, strict=False))
        found = list(_row_problems(cells))
        if any(given[len(header) :]):
            found.append("has more cells than there are columns")
        problems += [Problem(source=source, path=f"line {number}", message=text) for text in found]
        if not found:
            rows.append(_row(cells, number))
    if not problems and not rows:
        problems.append(Problem(source=source, message="has column names but no rows"))
    if len(problems) > _MAX_PROBLEMS:
        more = f"{len(problems) - _MAX_PROBLEMS:,} problems more"
        problems[_MAX_PROBLEMS:] = [Problem(source=source, message=more)]
    if problems:
        raise InputError(*problems)
    known = {*_columns(), _MEASURED, ""}
    return MeasuredTable(
        rows=tuple(rows), ignored_columns=tuple(name for name in header if name not in known)
    )


def _lines(path: Path) -> list[tuple[int, str]]:
    """Give the numbered lines that are neither empty nor comments."""
    try:
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            message = f"has more than {_MAX_BYTES // 2**20} MiB; split it"
            raise InputError(Problem(source=str(path), message=message))
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "isn't UTF-8 text"
        message = f"can't be read: {str(reason).lower()}; name a CSV file of measured iterations"
        raise InputError(Problem(source=str(path), message=message)) from error
    lines = (
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    return list(islice(lines, _MAX_ROWS + 2))


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a cell of more than 128 KiB
        return [line]


def _columns() -> dict[str, Field[object]]:
    return {item.name: item for item in fields(Configuration)}


def _required() -> list[str]:
    return [name for name, item in _columns().items() if item.default is MISSING]


def _header_problems(header: Sequence[str], source: str) -> Iterator[Problem]:
    required = {*_required(), _MEASURED}
    if len(header) == 1 and (separator := re.search("[;\t]", header[0])):
        message = f"cells are separated by {separator[0]!r}; separate them by commas"
        yield Problem(source=source, path="header", message=message)
        return
    for name in (*_columns(), _MEASURED):
        if name in required and name not in header:
            has = suggestion(name, header).replace("known are", "the file has")
            message = f"column {name} is missing; {has}"
            yield Problem(source=source, path="header", message=message)
        elif header.count(name) > 1:
            yield Problem(source=source, path="header", message=f"column {name} is given twice")


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InputError("a whole number from 1 to 999,999,999")
    return int(text)


def _zero_stage(text: str) -> int:
    if text not in {str(stage) for stage in range(_ZERO_STAGES)}:
        raise InputError(f"a ZeRO stage from 0 to {_ZERO_STAGES - 1}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 1 <= rate <= 1e6:  # noqa: PLR2004
        raise InputError("Gb/s from 1 to 1,000,000")
    return rate


def _milliseconds(text: str) -> float:
    try:
        measured_ms = float(text)
    except ValueError:
        measured_ms = math.nan
    if not _LEAST_MS <= measured_ms <= _MOST_MS:
        raise InputError(f"milliseconds from {_LEAST_MS:g} to {_MOST_MS:g}")
    return measured_ms


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in names:
            raise InputError(" or ".join(names))
        return text.lower()

    return read


def _software(text: str) -> str:
    try:
        return software_model(text).name
    except UsageError as error:
        raise InputError("a software profile; " + str(error).partition("; ")[2]) from error


def _gpu(text: str) -> str:
    if text.lower() not in GPUS:
        raise InputError(f"a GPU of `spindle gpus`; {suggestion(text.lower(), GPUS)}")
    return text.lower()


_READERS: dict[str, Callable[[str], object]] = {
    "recompute": lambda text: Recompute(_one_of([*Recompute])(text)),
    "sequence_parallel": lambda text: _one_of([*_Yes])(text) == _Yes.TRUE,
    "overlap_sync": lambda text: _one_of([*_Yes])(text) == _Yes.TRUE,
    "zero_stage": _zero_stage,
    "attention": _one_of(("flash", "unfused")),
    "software": _software,
    "gpu": _gpu,
    "node_gbps": _rate,
    _MEASURED: _milliseconds,
}


def _given(cells: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give the columns that have to be read, and what this row has in them."""
    required = {*_required(), _MEASURED}
    for name in (*_columns(), _MEASURED):
        text = cells.get(name, "")
        if text or name in required:
            yield name, text


def _row_problems(cells: Mapping[str, str]) -> Iterator[str]:
    for name, text in _given(cells):
        try:
            _READERS.get(name, _whole)(text)
        except InputError as error:
            yield f"{name} must be {error.problems[0].message}, not {text[:_SHOWN]!r}"


def _row(cells: Mapping[str, str], line: int) -> MeasuredRow:
    values = {name: _READERS.get(name, _whole)(text) for name, text in _given(cells)}
    measured_ms = cast("float", values.pop(_MEASURED))
    return MeasuredRow(
        line=line,
        configuration=Configuration(**values),  # type: ignore[arg-type]
        measured_s=1e-3 * measured_ms,
    )
