"""Scaling curves as small multiples, a chart for each block of a module: a figure as plain data.

Tasks that share a block differ by batch and tokens alone, and often not at all: a chart has few
lines, in the colours of their tasks. Both axes are logarithmic, ticks are the allocations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spindle_sim.report.palette import task_style
from spindle_sim.report.run import Curve

__all__ = ["Panel", "curves_figure", "panels"]

Points = tuple[tuple[int, float], ...]
_COLUMNS = 4
_ROW_PIXELS, _GAP_PIXELS, _EDGE_PIXELS = 170, 74, 64
_GAP = 0.055  # between columns, of the width
_DECADES_OF_STEPS = 2.0  # within fewer decades, 2 and 5 get ticks as well
_LEAST_DECADES = 0.8
_LEAST_MS = 1e-9  # what takes no time has no place on a logarithmic axis
_LABEL_SHARE = 0.085  # of the axis: the height of a label
_TICK_RATIO = 1.45  # ticks that lie closer would run into each other
_FONT = {"family": "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif", "size": 12}
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})  # Plotly reads some HTML


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The curves of one block of a module: points and the tasks that have just these."""

    name: str
    lines: tuple[tuple[Points, tuple[str, ...]], ...]

    @property
    def slowest_s(self) -> float:
        """The longest time of one operator."""
        return max(seconds for points, _ in self.lines for _, seconds in points)


def panels(curves: Sequence[Curve]) -> tuple[Panel, ...]:
    """Group curves named "task/module/block" by module and block, the slowest first."""
    found: dict[str, dict[Points, list[str]]] = {}
    for curve in curves:
        if curve.points:
            task, *rest = curve.name.rsplit("/", 2)
            block = found.setdefault("/".join(rest) or task, {})
            block.setdefault(curve.points, []).append(task)
    grouped = [
        Panel(
            name=name,
            lines=tuple((points, tuple(tasks)) for points, tasks in lines.items()),
        )
        for name, lines in found.items()
    ]
    return tuple(sorted(grouped, key=lambda panel: (-panel.slowest_s, panel.name)))


def curves_figure(curves: Sequence[Curve], tasks: dict[str, int]) -> dict[str, object]:
    """Give Plotly's data and layout; `tasks` numbers tasks, for their colours."""
    shown = panels(curves)
    columns = max(1, min(_COLUMNS, len(shown)))
    rows = -(-len(shown) // columns)
    inner = rows * _ROW_PIXELS + max(0, rows - 1) * _GAP_PIXELS
    data: list[dict[str, object]] = []
    titles: list[dict[str, object]] = []
    layout: dict[str, object] = {
        "height": inner + _EDGE_PIXELS + 40,
        "margin": {"l": 60, "r": 16, "t": 40, "b": _EDGE_PIXELS},
        "font": _FONT,
        "showlegend": False,
        "hovermode": "closest",
        "plot_bgcolor": "#fff",
        "annotations": titles,
    }
    width = (1 - _GAP * (columns - 1)) / columns
    for index, panel in enumerate(shown):
        row, column = divmod(index, columns)
        suffix = str(index + 1) if index else ""
        left = column * (width + _GAP)
        top = 1 - row * (_ROW_PIXELS + _GAP_PIXELS) / inner
        bottom = max(0.0, top - _ROW_PIXELS / inner)
        data += _traces(panel, suffix, tasks)
        titles += [_title(panel.name, left, top), *_labels(panel, suffix)]
        layout[f"xaxis{suffix}"] = _device_axis(panel, f"y{suffix}", [left, left + width])
        layout[f"yaxis{suffix}"] = _time_axis(panel, f"x{suffix}", [bottom, top])
    return {"data": data, "layout": layout}


def _traces(panel: Panel, suffix: str, tasks: dict[str, int]) -> list[dict[str, object]]:
    axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "type": "scatter"}
    slowest = max(panel.lines, key=lambda line: line[0][0][1])[0]
    first_n, first_s = slowest[0]
    ideal: dict[str, object] = {
        **axes,
        "mode": "lines",
        "x": [n for n, _ in slowest],
        "y": [_short(1e3 * first_s * first_n / n) for n, _ in slowest],
        "line": {"color": "#999", "dash": "dot", "width": 1},
        "hoverinfo": "skip",
    }
    return [ideal] + [
        {
            **axes,
            "mode": "lines+markers",
            "x": [n for n, _ in points],
            "y": [_short(1e3 * seconds) for _, seconds in points],
            "line": {"color": task_style(tasks.get(names[0], 0)).colour, "width": 2},
            "marker": {"size": 6, "line": {"width": 0.5, "color": "#555"}},
            "hovertext": [
                f"{_plain(', '.join(names))}<br>{n} device{'s' * (n > 1)}: {1e3 * seconds:.4g} ms"
                for n, seconds in points
            ],
            "hoverinfo": "text",
        }
        for points, names in panel.lines
    ]


def _labels(panel: Panel, suffix: str) -> list[dict[str, object]]:
    """Give names at the first points; lines that begin too close together share one."""
    low, high = _time_range(panel)
    found: list[tuple[int, float, list[str]]] = []
    for points, names in sorted(panel.lines, key=lambda line: -line[0][0][1]):
        n, place = points[0][0], _log_ms(points[0][1])
        if found and found[-1][1] - place < _LABEL_SHARE * (high - low):
            found[-1][2].extend(names)
        else:
            found.append((n, place, list(names)))
    return [
        {
            "xref": f"x{suffix}",
            "yref": f"y{suffix}",
            "x": math.log10(n),
            "y": place,
            "text": _plain(names[0]) + (f" + {len(names) - 1}" if len(names) > 1 else ""),
            "xanchor": "left",
            "yanchor": "bottom",
            "xshift": 3,
            "yshift": 4,
            "showarrow": False,
            "font": {"size": 10},
            "borderpad": 0,
            "bgcolor": "rgba(255,255,255,0.75)",
        }
        for n, place, names in found
    ]


def _title(name: str, left: float, top: float) -> dict[str, object]:
    place = {"xref": "paper", "yref": "paper", "x": left, "y": top}
    anchor = {"xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return {**place, **anchor, "text": f"<b>{_plain(name)}</b>", "font": {"size": 13}}


def _device_axis(panel: Panel, anchor: str, domain: list[float]) -> dict[str, object]:
    allocations = sorted({n for points, _ in panel.lines for n, _ in points})
    ticks = _spread(allocations)
    low, high = math.log10(allocations[0]), math.log10(allocations[-1])
    slack = 0.06 * (high - low) or 0.2
    return {
        **_axis(anchor, domain, "devices"),
        "range": [low - slack, high + slack],
        "tickvals": ticks,
        "ticktext": [str(n) for n in ticks],
    }


def _time_axis(panel: Panel, anchor: str, domain: list[float]) -> dict[str, object]:
    low, high = _time_range(panel)
    steps = (1, 2, 5) if high - low < _DECADES_OF_STEPS else (1,)
    ticks = [
        float(f"{step}e{power}")
        for power in range(math.floor(low), math.ceil(high) + 1)
        for step in steps
    ]
    inside = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {
        **_axis(anchor, domain, ""),
        "range": [low, high],
        "tickvals": inside,
        "ticktext": [f"{tick:g} ms" for tick in inside],
    }


def _time_range(panel: Panel) -> tuple[float, float]:
    """Give logarithms of milliseconds: room above for a label, and never less than two ticks."""
    places = [_log_ms(seconds) for points, _ in panel.lines for _, seconds in points]
    low, high = min(places), max(places)
    slack = 0.1 * (high - low) + max(0.0, (_LEAST_DECADES - (high - low)) / 2)
    return low - slack, high + 2 * slack


def _log_ms(seconds: float) -> float:
    return math.log10(max(1e3 * seconds, _LEAST_MS))


def _axis(anchor: str, domain: list[float], title: str) -> dict[str, object]:
    return {
        "type": "log",
        "anchor": anchor,
        "domain": domain,
        "title": {"text": title, "standoff": 4, "font": {"size": 11}},
        "gridcolor": "#e4e4e4",
        "linecolor": "#888",
        "zeroline": False,
        "tickfont": {"size": 11},
    }


def _spread(allocations: list[int]) -> list[int]:
    """Give the allocations that have room for a tick: the first, the last, those far enough."""
    kept = [allocations[0]]
    for n in allocations[1:]:
        if n >= _TICK_RATIO * kept[-1]:
            kept.append(n)
    last = allocations[-1]
    if kept[-1] != last:
        if len(kept) > 1:
            kept.pop()
        kept.append(last)
    return kept


def _plain(text: str) -> str:
    return text.translate(_MARKUP)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
