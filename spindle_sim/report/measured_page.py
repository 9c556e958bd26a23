"""Measured against simulated iterations as one HTML file that opens offline."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from spindle_sim.plan.atomic import write_atomically
from spindle_sim.report.palette import task_style

__all__ = ["MeasuredPoint", "write_measured"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Measured and simulated: {title}</title>
<style>body {{ font: 15px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
  color: #1b1b1b; margin: 20px; }} h1 {{ font-size: 1.6rem; margin: 0; }} p {{ margin: 4px 0; }}
  table {{ border-collapse: collapse; }} td, th {{ padding: 2px 10px; text-align: right; }}
</style></head>
<body>
<h1>{title}</h1>
<p><b>{summary}</b></p>
<p>Left: milliseconds of an iteration, measured and simulated; on the line both are equal. Right:
how many rows are off by how much; below 0 the simulation is too short.</p>
{chart}
<h2>Farthest off</h2>
<table><tr><th>Row</th><th>Measured</th><th>Simulated</th><th>Error</th></tr>{rows}</table>
</body>
</html>
"""
_FARTHEST = 20
_FONT = {"family": "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif", "size": 12}
_BIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One row: its name, the group that gives its colour, both times."""

    name: str
    group: str
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """How far the simulated time is off, relative."""
        return self.simulated_s / self.measured_s - 1


def write_measured(
    path: Path | str, points: Sequence[MeasuredPoint], *, title: str, summary: str
) -> None:
    """Write the points as two charts and a table of the rows that are farthest off.

    Raises:
        UsageError: the path can't be written.
    """
    from plotly.io import to_html

    # A fixed id: by default it is random, and the same points are to give the same bytes.
    chart = to_html(
        _figure(points),
        config={"displayModeBar": False, "responsive": True},
        include_plotlyjs=True,
        full_html=False,
        div_id="measured",
        validate=False,
    )
    farthest = sorted(points, key=lambda point: -abs(point.error))[:_FARTHEST]
    rows = "".join(
        f"<tr><td>{escape(point.name)}</td><td>{1e3 * point.measured_s:,.1f} ms</td>"
        f"<td>{1e3 * point.simulated_s:,.1f} ms</td><td>{point.error:+.1%}</td></tr>"
        for point in farthest
    )
    page = _PAGE.format(title=escape(title), summary=escape(summary), chart=chart, rows=rows)
    write_atomically(path, page.encode())


def _figure(points: Sequence[MeasuredPoint]) -> dict[str, object]:
    groups = list(dict.fromkeys(point.group for point in points))
    ends = [1e3 * value for point in points for value in (point.measured_s, point.simulated_s)]
    data: list[dict[str, object]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [min(ends), max(ends)],
            "y": [min(ends), max(ends)],
            "line": {"color": "#999", "dash": "dot", "width": 1},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    for index, group in enumerate(groups):
        own = [point for point in points if point.group == group]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(group),
                "x": [1e3 * point.measured_s for point in own],
                "y": [1e3 * point.simulated_s for point in own],
                "marker": {"color": task_style(index).colour, "size": 6},
                "hovertext": [f"{escape(point.name)}<br>{point.error:+.1%}" for point in own],
                "hoverinfo": "text",
            }
        )
    data.append(
        {
            "type": "histogram",
            "x": [100 * point.error for point in points],
            "xbins": {"size": 100 * _BIN},
            "marker": {"color": task_style(0).colour},
            "xaxis": "x2",
            "yaxis": "y2",
            "showlegend": False,
        }
    )
    layout: dict[str, object] = {
        "height": 460,
        "font": _FONT,
        "plot_bgcolor": "#fff",
        "legend": {"x": 0.02, "y": 0.98},
        "xaxis": {"type": "log", "title": {"text": "measured, ms"}, "domain": [0, 0.55]},
        "yaxis": {"type": "log", "title": {"text": "simulated, ms"}},
        "xaxis2": {"title": {"text": "error, %"}, "domain": [0.65, 1], "anchor": "y2"},
        "yaxis2": {"title": {"text": "rows"}, "anchor": "x2"},
    }
    return {"data": data, "layout": layout}
