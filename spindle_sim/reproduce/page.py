"""The evaluation as one HTML file that opens offline: statements first, then a chart a figure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from spindle_sim.plan.atomic import write_atomically
from spindle_sim.reproduce.charts import Chart, charts
from spindle_sim.reproduce.document import INCOMPLETE, Document, StatementRow, document
from spindle_sim.reproduce.rules import TOLERANCE
from spindle_sim.reproduce.run import Reproduction

__all__ = ["render_page", "write_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper's evaluation, reproduced</title>
<style>
{style}
td.long {{ white-space: normal; min-width: 22em; text-align: left; }}
</style></head>
<body>
<header>
<h1>The paper's evaluation, reproduced</h1>
<p>{subtitle}</p>
<p class="notice">{notice}</p>
</header>
<main>
<noscript><p class="notice">The tables are complete; the charts need JavaScript.</p></noscript>
<section><h2>Statements: {met} of {judged} met</h2>
<p class="note">{rule}</p>
{statements}</section>
{experiments}
{sections}
<section><h2>Batches</h2>
{batches}</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>
const figures = JSON.parse(document.getElementById("data").textContent);
for (const [id, figure] of Object.entries(figures)) {{
  Plotly.newPlot(id, figure.data, figure.layout, {{displayModeBar: false, responsive: true}});
}}
</script>
</body>
</html>
"""


def write_page(path: Path | str, reproduction: Reproduction) -> None:
    """Write the page.

    Raises:
        UsageError: the path can't be written.
    """
    write_atomically(path, render_page(reproduction).encode())


def render_page(reproduction: Reproduction) -> str:
    """Give the page's HTML; no wall time is on it, so that the same options give the same bytes."""
    from plotly.offline import get_plotlyjs

    found = document(reproduction)
    drawn = charts(found.parts)
    sizes = ", ".join(str(size) for size in found.provenance["cluster"]["sizes"])
    return _PAGE.format(
        style=(files("spindle_sim.report") / "report.css").read_text(encoding="utf-8"),
        subtitle=escape(
            f"{found.provenance['cluster']['gpu']}, {sizes} GPUs in nodes of eight; batch scale"
            f" {found.provenance['batch_scale']:g}; seed {found.provenance['seed']}"
        ),
        notice=escape(
            f"Simulated, not run. Times: {found.provenance['profile'] or 'none'}."
            + ("" if found.provenance["complete"] else f" {INCOMPLETE}")
        ),
        met=found.met,
        judged=found.judged,
        rule=f"A stated number is met where ours is within {TOLERANCE:.0%} of it (of a range, both"
        " ends), a bound or a comparison where it holds.",
        statements=_statements(found),
        experiments=_experiments(found),
        sections="\n".join(_section(chart, found) for chart in drawn),
        batches=_batches(found) + _scales(found),
        data=_inert(json.dumps({chart.id: chart.figure for chart in drawn}, allow_nan=False)),
        plotly=get_plotlyjs(),
    )


def _section(chart: Chart, found: Document) -> str:
    table = _times_table(found) if chart.id == "fig8-qwen-val" else ""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<section><h2>{escape(chart.title)}</h2>{note}\n<div id="{escape(chart.id)}"'
        f' class="chart" role="img" aria-label="{escape(chart.title)}"></div>{table}</section>'
    )


def _statements(found: Document) -> str:
    rows = [_statement(row) for row in found.statements]
    return _table(
        ["Statement", "Section", "Paper", "Ours", "Met", "How ours is found", "Explanation"], rows
    )


def _statement(row: StatementRow) -> list[str]:
    met = {True: "yes", False: "no", None: "not evaluated"}[row.met]
    shown = "wall time" if row.ours is None and row.met is not None else _value(row.ours)
    return [row.statement, row.section, _value(row.paper), shown, met, row.how, row.explanation]


def _experiments(found: Document) -> str:
    """Give a row for each statement and a column for each change, the most telling first."""
    rows = found.experiments
    if not rows:
        return ""
    met = Counter(row.change for row in rows if row.met)
    changes = sorted(dict.fromkeys(row.change for row in rows), key=lambda name: -met[name])
    known = {(row.statement, row.change): row for row in rows}
    cells = []
    for name in dict.fromkeys(row.statement for row in rows):
        under = [known.get((name, change)) for change in changes]
        shown = [f"{_value(row.ours)}{', met' * row.met}" if row else "-" for row in under]
        cells.append([name, *shown])
    cells.append(["statements met", *(str(met[change]) for change in changes)])
    table = _table(["Ours under each change", *changes], cells)
    return f"<section><h2>Experiments on what isn't met</h2>\n{table}</section>"


def _times_table(found: Document) -> str:
    cases: Sequence[dict[str, Any]] = found.parts["fig8"]["cases"]
    names = list(dict.fromkeys(name for case in cases for name in case["strategies"]))
    rows = [
        [
            f"{case['workload']}, {case['tasks']} tasks, {case['gpus']} GPUs",
            *(_milliseconds(case["strategies"].get(name, {})) for name in names),
        ]
        for case in cases
    ]
    return _table(["Milliseconds of an iteration", *names], rows)


def _milliseconds(row: dict[str, Any]) -> str:
    return f"{1e3 * row['iteration_s']:,.1f}" if "iteration_s" in row else "no plan"


def _batches(found: Document) -> str:
    rows = [
        [workload, task, str(recipe["batch_size"]), recipe["source"]]
        for workload, recipes in found.batches.items()
        for task, recipe in recipes.items()
    ]
    return _table(["Workload", "Task", "Global batch", "Source"], rows)


def _scales(found: Document) -> str:
    rows = found.parts.get("batches", {}).get("rows", [])
    if not rows:
        return ""
    scales = [key for key in rows[0] if key.startswith("x")]
    cells = [
        [row["workload"], row["over"], *(_value(row[scale]) for scale in scales)] for row in rows
    ]
    heads = [f"batches {scale}" for scale in scales]
    return "<h2>Spindle's speed-ups with other batches, least to most</h2>" + _table(
        ["Workload", "Over", *heads], cells
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "holds" if value else "doesn't hold"
    if isinstance(value, list):
        return (" to " if len(value) == _ENDS else ", ").join(_value(one) for one in value)
    return f"{value:.3g}" if isinstance(value, float | int) else "-"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    columns = "".join(f'<th scope="col" class="text">{escape(name)}</th>' for name in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td{_look(cell)}>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for cells in rows
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


_LONG = 24
_ENDS = 2  # of a range
_FIGURE = re.compile(r"-|[-0-9.,]+(?:(?: to |, )[-0-9.,]+)*")


def _look(cell: str) -> str:
    """Figures stand at the right; words at the left, many of them on several lines."""
    if _FIGURE.fullmatch(cell):
        return ""
    return ' class="long"' if len(cell) > _LONG else ' class="text"'


def _inert(text: str) -> str:
    """Give JSON in which no name can end its script element."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
