"""Scaling curves alone, as one HTML file that opens offline (`spindle curves --report`)."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from spindle_sim.plan.atomic import write_atomically
from spindle_sim.report.curves_figure import curves_figure
from spindle_sim.report.run import Curve

__all__ = ["write_curves"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Scaling curves: {title}</title>
<style>body {{ font: 15px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
  color: #1b1b1b; margin: 20px; }} h1 {{ font-size: 1.6rem; margin: 0; }} p {{ margin: 4px 0; }}
</style></head>
<body>
<h1>{title}</h1>
<p><b>{note}</b></p>
<p>Milliseconds of one operator, forward and backward, on n devices: a chart for each block of a
module; tasks with equal times share a line. Dotted: perfect scaling.</p>
{chart}
</body>
</html>
"""


def write_curves(path: Path | str, curves: Sequence[Curve], *, title: str, note: str) -> None:
    """Write the curves as small charts with logarithmic axes; `note` says whence the times come.

    Raises:
        UsageError: the path can't be written.
    """
    from plotly.io import to_html

    tasks: dict[str, int] = {}
    for curve in curves:
        tasks.setdefault(curve.name.rsplit("/", 2)[0], len(tasks))
    # A fixed id: by default it is random, and the same curves are to give the same bytes.
    chart = to_html(
        curves_figure(curves, tasks),
        config={"displayModeBar": False, "responsive": True},
        include_plotlyjs=True,
        full_html=False,
        div_id="curves",
        validate=False,
    )
    page = _PAGE.format(title=escape(title), note=escape(note), chart=chart)
    write_atomically(path, page.encode())
