"""The report: one HTML file that opens offline, with plotly.js and every figure in it."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from spindle_sim.errors import UsageError
from spindle_sim.metrics import critical_path, summarize
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.report.content import page_content
from spindle_sim.report.curves import scaling_curves
from spindle_sim.report.figures import (
    facts_table,
    idle_table,
    parallelism_table,
    strategy_table,
)
from spindle_sim.report.path import path_table
from spindle_sim.report.provenance import provenance_notice
from spindle_sim.report.run import Curve, Run

__all__ = ["render_report", "write_report"]

_SCRIPTS = ("drawing", "spans", "gantt", "charts", "start")  # one function, in this order
_SAME_SCALE = '<label><input type="checkbox" id="same"> one time scale for all strategies</label>'


def write_report(
    path: Path | str, runs: Sequence[Run], *, curves: Sequence[Curve] | None = None
) -> None:
    """Write the report of these runs, one or several strategies on one workload and cluster.

    `curves` are drawn where given; otherwise they come from the device model, if the first plan's
    times did.

    Raises:
        UsageError: the path can't be written, or there are no runs.
    """
    write_atomically(path, render_report(runs, curves=curves).encode())


def render_report(runs: Sequence[Run], *, curves: Sequence[Curve] | None = None) -> str:
    """Give the report's HTML; same runs, same text.

    Raises:
        UsageError: there are no runs.
    """
    from plotly.offline import get_plotlyjs

    if not runs:
        raise UsageError("a report needs at least one run; no strategy gave a plan")
    summaries = [summarize(run.plan, run.timeline) for run in runs]
    pairs = list(zip(runs, summaries, strict=True))
    paths = [critical_path(run.plan, run.timeline) for run in runs]
    first = runs[0].plan
    drawn = scaling_curves(first) if curves is None else curves
    title = f"{first.workload.name} on {first.cluster.name}"
    return Template(_resource("report.html")).substitute(
        title=escape(title),
        style=_resource("report.css"),
        facts=facts_table(first, runs[0].timeline.backend),
        strategies=strategy_table(pairs) + parallelism_table(pairs),
        path=path_table([(run.name, path) for run, path in zip(runs, paths, strict=True)]),
        idle=idle_table(pairs),
        subtitle=escape(_subtitle([run.name for run in runs])),
        provenance=provenance_notice(first, runs[0].timeline),
        choices=_choices([run.name for run in runs]),
        same=_SAME_SCALE if len(runs) > 1 else "",
        data=_inert(json.dumps(page_content(runs, summaries, drawn, paths), allow_nan=False)),
        plotly=get_plotlyjs(),
        script="".join(_resource(f"{name}.js") for name in _SCRIPTS),
    )


def _resource(name: str) -> str:
    return (files("spindle_sim.report") / name).read_text(encoding="utf-8")


def _subtitle(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"One training iteration under the strategy {names[0]}"
    return f"One training iteration under each of {len(names)} strategies"


def _choices(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    buttons = "\n".join(
        f'<label><input type="radio" name="run" value="{index}"'
        f"{' checked' if index == 0 else ''}> {escape(name)}</label>"
        for index, name in enumerate(names)
    )
    return f'<fieldset class="choices"><legend>Strategy shown</legend>\n{buttons}\n</fieldset>'


def _inert(text: str) -> str:
    """Give JSON in which no name can end its script element."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
