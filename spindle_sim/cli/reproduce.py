"""`spindle reproduce`: the paper's evaluation, its statements beside ours."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.options import BatchScale, JsonOutput, Report, Seed
from spindle_sim.cli.outputs import check_outputs
from spindle_sim.errors import UsageError, suggestion
from spindle_sim.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from spindle_sim.reproduce import Options, Reproduction
    from spindle_sim.reproduce.document import Document, StatementRow

__all__ = ["reproduce"]

_ALL = "all"
_SIZES = "8,16,32,64"
_ENDS = 2  # of a range: its least and its greatest

Parts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PART...",
        help="Parts of the evaluation, as --list names them; all of them by default.",
        show_default=False,
    ),
]
Sizes = Annotated[
    str, typer.Option("--gpus", metavar="LIST", help="Cluster sizes, multiples of eight.")
]


def reproduce(
    parts: Parts = None,
    *,
    list_parts: Annotated[
        bool, typer.Option("--list", help="List the parts and what they are, and stop.")
    ] = False,
    gpus: Sizes = _SIZES,
    batch_scale: BatchScale = 1.0,
    seed: Seed = 0,
    report: Report = None,
    json: JsonOutput = False,
) -> None:
    """Reproduce the paper's evaluation on its cluster, and set its statements beside ours."""
    if list_parts:
        _print_parts()
        return
    check_outputs(report=report)
    options = _options(parts or [_ALL], gpus, batch_scale, seed)
    found = _run(options)
    if report is not None:
        from spindle_sim.reproduce.page import write_page

        write_page(report, found)
    if json:
        from dataclasses import asdict

        from spindle_sim.reproduce.document import document

        print_json(asdict(document(found)))
        return
    _print(found, report)


def _options(parts: Sequence[str], gpus: str, batch_scale: float, seed: int) -> "Options":
    from spindle_sim.reproduce import ALL_PARTS, PARTS, Options

    unknown = [
        f"no part {name!r}; {suggestion(name, [_ALL, *PARTS])}"
        for name in parts
        if name not in (_ALL, *PARTS)
    ]
    if unknown:
        raise UsageError(*unknown)
    wanted = {*parts, *(ALL_PARTS if _ALL in parts else ())}
    return Options(
        parts=tuple(name for name in PARTS if name in wanted),
        gpus=_sizes(gpus),
        batch_scale=batch_scale,
        seed=seed,
    )


def _sizes(text: str) -> tuple[int, ...]:
    from spindle_sim.reproduce.cases import ALL_GPUS

    allowed = {str(size): size for size in ALL_GPUS}
    names = [name.strip() for name in text.split(",")]
    if not all(name in allowed for name in names):
        raise UsageError(f"--gpus {text:.40}: expected some of {', '.join(allowed)}, with commas")
    if len(set(names)) < len(names):
        raise UsageError(f"--gpus {text:.40}: a size is given twice")
    return tuple(sorted(allowed[name] for name in names))


def _run(options: "Options") -> "Reproduction":
    from spindle_sim.reproduce import reproduce as run

    @contextmanager
    def begin(what: str, count: int) -> Iterator[Callable[[str], None]]:
        with progress(count) as advance:
            advance(f"{count} {what}")
            yield advance

    return run(options, os.cpu_count() or 1, begin)


def _print_parts() -> None:
    from spindle_sim.reproduce import PARTS

    width = max(map(len, PARTS))
    for name, summary in PARTS.items():
        print(f"{name:<{width}}  {summary}")


def _print(found: "Reproduction", report: str | None) -> None:
    from spindle_sim.reproduce.document import INCOMPLETE, document

    console = stdout_console()
    result = document(found)
    judged = [row for row in result.statements if row.met is not None]
    tried = bool(found.trials)
    table = new_table("", "Statement", "Section", "Paper", "Ours", "Met", *["Experiment"] * tried)
    for row in judged:
        ours = _ours(row, result.wall_clock)
        cells = [row.id, row.section, _shown(row.paper), ours, _word(row.met)]
        table.add_row(*cells, *[_experiment(row, result.wall_clock)] * tried)
    print_table(console, table)
    for row in judged:
        if not row.met:
            why = f"; {_why(row, result.wall_clock)}" if row.explanation else ""
            console.print(f'{row.id}: "{row.statement}" Ours: {row.how}{why}', soft_wrap=True)
    _print_experiments(console, result)
    if result.met < result.judged and not found.trials:
        console.print("Name the part `explain`, too, for experiments with what isn't met.")
    missing = len(result.statements) - len(judged)
    console.print(
        f"{result.met} of {counted(result.judged, 'statement')} met"
        + (f"; {missing} not evaluated in this run" if missing else "")
        + ". A stated number is met within 10 %, a bound where it holds. Speed-ups and shares are"
        " ratios, parameters billions, profiling-time and planning-time seconds.",
        soft_wrap=True,
    )
    if not result.provenance["complete"]:
        console.print(INCOMPLETE, soft_wrap=True)
    for line in _left_out(found.options):
        console.print(line, soft_wrap=True)
    console.print(f"Times: {result.provenance['profile']}. Simulated, not run.", soft_wrap=True)
    if report is not None:
        console.print(f"Report: {report}", soft_wrap=True)


def _why(row: "StatementRow", wall_clock: dict[str, object]) -> str:
    """Give the explanation; of a wall time, what the experiment found."""
    hidden = wall_clock.get("experiments")
    if isinstance(hidden, dict) and row.id in hidden:
        return ", ".join(f"{name}: {_shown(value)}" for name, value in hidden[row.id].items())
    return row.explanation


def _experiment(row: "StatementRow", wall_clock: dict[str, object]) -> str:
    """Give the change that meets a statement, or brings it nearest, with ours under it."""
    if row.met is not False:
        return ""
    if row.experiment is None:
        return _why(row, wall_clock)
    ours = _shown(row.experiment.ours)
    return f"{'met' if row.experiment.met else 'nearest'} under {row.experiment.change}: {ours}"


def _print_experiments(console: "Console", result: "Document") -> None:
    """Print how many of the statements that aren't met each change meets, the most first."""
    rows = result.experiments
    if not rows:
        return
    tried, met = Counter(row.change for row in rows), Counter(row.change for row in rows if row.met)
    table = new_table("", "Change", "Meets", "Of those tried")
    for change in sorted(tried, key=lambda name: -met[name]):
        table.add_row(change, str(met[change]), str(tried[change]))
    print_table(console, table)


def _left_out(options: "Options") -> Iterator[str]:
    """Say which parts had nothing to run on clusters of the sizes asked for."""
    from spindle_sim.reproduce.cases import ALL_GPUS, part_cases

    for part in options.judged_parts:
        if part_cases(part, options.gpus, options.batch_scale):
            continue
        sizes = sorted({case.gpus for case in part_cases(part, ALL_GPUS, options.batch_scale)})
        if sizes:
            wanted = " or ".join(str(size) for size in sizes)
            yield f"{part} wasn't run: it needs a cluster of {wanted} GPUs (--gpus)."


def _ours(row: "StatementRow", wall_clock: dict[str, object]) -> str:
    hidden = wall_clock.get("statements")
    if isinstance(hidden, dict) and row.id in hidden:
        return _shown(hidden[row.id])
    return _shown(row.ours)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "holds" if value else "doesn't"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return (" to " if len(value) == _ENDS else ", ").join(_shown(one) for one in value)
    return f"{value:.3g}" if isinstance(value, float | int) else "-"


def _word(met: bool | None) -> str:  # noqa: FBT001  (three-valued: not a switch)
    return "yes" if met else "no"
