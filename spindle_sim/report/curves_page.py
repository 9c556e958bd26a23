"""Scaling curves alone, as one HTML file that opens offline (`spindle curves --report`)."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from spindle_sim.plan.atomic import write_atomically
from spindle_sim.report.palette import task_style
from spindle_sim.report.run import Curve

__all__ = ["write_curves"]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_COLOURS = 7  # told apart by colour-blind readers; the dash tells the turns apart


def write_curves(path: Path | str, curves: Sequence[Curve], *, title: str, note: str) -> None:
    """Write the curves as a chart with logarithmic axes; `note` says where the times come from.

    Raises:
        UsageError: the path can't be written.
    """
    from plotly import graph_objects as go

    figure = go.Figure(
        [
            go.Scatter(
                x=[n for n, _ in curve.points],
                y=[1e3 * time_s for _, time_s in curve.points],
                name=curve.name,
                mode="lines+markers",
                line={
                    "color": task_style(index % _COLOURS).colour,
                    "dash": _DASHES[index // _COLOURS % len(_DASHES)],
                },
                hovertemplate="%{x} devices: %{y:.4g} ms<extra>%{fullData.name}</extra>",
            )
            for index, curve in enumerate(curves)
        ]
    )
    figure.update_layout(
        title={"text": f"{escape(title)}<br><sub>{escape(note)}</sub>"},
        xaxis={"title": {"text": "devices"}, "type": "log", "dtick": "D1"},
        yaxis={"title": {"text": "ms of one operator, forward and backward"}, "type": "log"},
        template="plotly_white",
    )
    # A fixed id: by default it is random, and the same curves are to give the same bytes.
    page = figure.to_html(include_plotlyjs=True, div_id="curves")
    write_atomically(path, page.encode())
