"""The figures of section 5 as Plotly's plain data: one for each part that was run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spindle_sim.report import Curve
from spindle_sim.report.curves_figure import curves_figure
from spindle_sim.report.palette import task_style
from spindle_sim.reproduce.cases import SYSTEMS

__all__ = ["Chart", "charts"]

Figure = dict[str, Any]
Part = dict[str, Any]
_FONT = {"family": "system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif", "size": 12}
_GIB = 2.0**30
_BASELINE = "seq"
_HEIGHT = 380
_PARTS = {
    "forward and backward": "forward_backward_s",
    "synchronization": "sync_s",
    "optimizer step": "optimizer_s",
    "send and receive": "send_recv_s",
    "idle": "idle_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure; the id is its place in the page."""

    id: str
    title: str
    note: str
    figure: Figure


def charts(parts: dict[str, Part]) -> tuple[Chart, ...]:
    """Give the charts of all parts, in the paper's order."""
    draw: dict[str, Callable[[Part], Iterable[Chart]]] = {
        "fig4": _curves,
        "fig8": _times,
        "fig9": _case_study,
        "fig10": _breakdown,
        "fig11": _optima,
        "placement": _placement,
        "fig13": _courses,
        "fig14": _single,
        "fig15": _memory,
    }
    return tuple(
        chart for name, make in draw.items() if name in parts for chart in make(parts[name])
    )


def _colour(strategy: str) -> str:
    names = (*SYSTEMS, "sequential")
    return task_style(names.index(strategy)).colour


def _layout(x: str, y: str, **more: object) -> Figure:
    return {
        "height": _HEIGHT,
        "margin": {"l": 64, "r": 16, "t": 16, "b": 110},
        "font": _FONT,
        "plot_bgcolor": "#fff",
        "barmode": "group",
        "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"title": {"text": x}, "linecolor": "#888", "automargin": True},
        "yaxis": {"title": {"text": y}, "gridcolor": "#e4e4e4", "rangemode": "tozero"},
        **more,
    }


def _label(case: Part) -> str:
    tasks = case["tasks"]
    shown = f"{tasks} tasks" if isinstance(tasks, int) else ", ".join(tasks)
    return f"{case['workload']}<br>{shown}<br>{case['gpus']} GPUs"


def _curves(part: Part) -> Iterable[Chart]:
    drawn = [
        Curve(name=one["metaop"], points=tuple((n, time_s) for n, time_s in one["points"]))
        for one in part["curves"]
    ]
    tasks: dict[str, int] = {}
    for curve in drawn:
        tasks.setdefault(curve.name.rsplit("/", 2)[0], len(tasks))
    yield Chart(
        id="fig4",
        title="Figure 4: scaling curves",
        note="Milliseconds of one operator, forward and backward, on n devices; dotted: perfect"
        " scaling.",
        figure=curves_figure(drawn, tasks),
    )


def _relative(cases: list[Part]) -> list[Figure]:
    """Give a bar for each strategy: how many times as fast as Seq it is in each case."""
    bars = []
    for strategy in SYSTEMS:
        values = [_speed(case["strategies"], strategy) for case in cases]
        if any(value is not None for value in values):
            bars.append(
                {
                    "type": "bar",
                    "name": strategy,
                    "x": [_label(case) for case in cases],
                    "y": values,
                    "marker": {"color": _colour(strategy)},
                }
            )
    return bars


def _speed(strategies: Part, name: str) -> float | None:
    times = [strategies.get(key, {}).get("iteration_s") for key in (_BASELINE, name)]
    if times[0] is None or times[1] is None:
        return None
    return _short(times[0] / times[1])


def _times(part: Part) -> Iterable[Chart]:
    for workload in dict.fromkeys(case["workload"] for case in part["cases"]):
        cases = [case for case in part["cases"] if case["workload"] == workload]
        yield Chart(
            id=f"fig8-{workload}",
            title=f"Figure 8: {workload}",
            note="How many times as fast as Spindle-Seq each system is; times are in the table"
            " below.",
            figure={"data": _relative(cases), "layout": _layout("", "times as fast as seq")},
        )


def _single(part: Part) -> Iterable[Chart]:
    yield Chart(
        id="fig14",
        title="Figure 14: single tasks",
        note="How many times as fast as Spindle-Seq each system is.",
        figure={"data": _relative(part["cases"]), "layout": _layout("", "times as fast as seq")},
    )


def _case_study(part: Part) -> Iterable[Chart]:
    rows = part["strategies"]
    yield _lines(
        "fig9-time",
        "Figure 9: utilization of the cluster over time",
        {name: row["over_time"] for name, row in rows.items()},
        _layout("milliseconds of the iteration", "model FLOP/s over peak"),
        scale=1e3,
    )
    yield _lines(
        "fig9-devices",
        "Figure 9: utilization of each device",
        {name: list(enumerate(row["devices"])) for name, row in rows.items()},
        _layout("device", "model FLOP/s over peak"),
    )
    yield Chart(
        id="fig9-metaops",
        title="Figure 9: utilization of each MetaOp while it runs",
        note="The MetaOps of Transformer layers.",
        figure={
            "data": [
                {
                    "type": "bar",
                    "name": name,
                    "x": [key for key in row["metaops"] if key.endswith("/layers")],
                    "y": [
                        _short(value)
                        for key, value in row["metaops"].items()
                        if key.endswith("/layers")
                    ],
                    "marker": {"color": _colour(name)},
                }
                for name, row in rows.items()
            ],
            "layout": _layout("", "model FLOP/s over peak"),
        },
    )


def _lines(
    chart_id: str, title: str, rows: dict[str, list[Any]], layout: Figure, *, scale: float = 1.0
) -> Chart:
    return Chart(
        id=chart_id,
        title=title,
        note="",
        figure={
            "data": [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": [_short(scale * x) for x, _ in points],
                    "y": [_short(y) for _, y in points],
                    "line": {"color": _colour(name), "shape": "hvh"},
                }
                for name, points in rows.items()
            ],
            "layout": layout,
        },
    )


def _breakdown(part: Part) -> Iterable[Chart]:
    bars = [(case, name, row) for case in part["cases"] for name, row in case["strategies"].items()]
    yield Chart(
        id="fig10",
        title="Figure 10: where the time goes",
        note="Shares of an average device's iteration, synchronization isolated; Spindle beside"
        " Spindle-Seq.",
        figure={
            "data": [
                {
                    "type": "bar",
                    "name": title,
                    "x": [
                        [_label(case) for case, _, _ in bars],
                        [name for _, name, _ in bars],
                    ],
                    "y": [_short(row[key] / row["isolated_s"]) for _, _, row in bars],
                    "marker": {"color": task_style(index).colour},
                }
                for index, (title, key) in enumerate(_PARTS.items())
            ],
            "layout": {**_layout("", "share of the iteration"), "barmode": "stack"},
        },
    )


def _optima(part: Part) -> Iterable[Chart]:
    yield Chart(
        id="fig11",
        title="Figure 11: distance to the theoretical optimum",
        note="End of Spindle's forward and backward over C* of Theorem 1, summed over MetaLevels;"
        " MetaLevels may overlap, so that a plan can be below it.",
        figure={
            "data": [
                {
                    "type": "bar",
                    "name": "over C*",
                    "x": [_label(case) for case in part["cases"]],
                    "y": [_short(case["over_optimum"]) for case in part["cases"]],
                    "marker": {"color": _colour("spindle")},
                }
            ],
            "layout": _layout("", "end of compute over C*, less 1"),
        },
    )


def _placement(part: Part) -> Iterable[Chart]:
    yield Chart(
        id="placement",
        title="Section 5.5.2: placement",
        note="What transfers between stages add to forward and backward, as a share of the"
        " iteration.",
        figure={
            "data": [
                {
                    "type": "bar",
                    "name": name,
                    "x": [_label(case) for case in part["cases"]],
                    "y": [_short(case[name]["share"]) for case in part["cases"]],
                    "marker": {"color": _colour(name)},
                }
                for name in ("spindle", "sequential")
            ],
            "layout": _layout("", "share of the iteration"),
        },
    )


def _courses(part: Part) -> Iterable[Chart]:
    """Draw iterations done over time: a line for each system, flat while it changes over."""
    data = []
    for course in part["courses"]:
        points, now_s, done = [(0.0, 0)], 0.0, 0
        for phase in course["phases"]:
            now_s += phase["save_s"] + phase["planning_s"] + phase["reload_s"]
            points.append((now_s, done))
            now_s, done = now_s + phase["training_s"], done + part["iterations_a_phase"]
            points.append((now_s, done))
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": course["strategy"],
                "x": [_short(x) for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": _colour(course["strategy"])},
            }
        )
    yield Chart(
        id="fig13",
        title="Figure 13: task sets that change",
        note="Iterations done over time; between task sets the model is saved, planned anew and"
        " reloaded.",
        figure={"data": data, "layout": _layout("seconds", "iterations")},
    )


def _memory(part: Part) -> Iterable[Chart]:
    yield _lines(
        "fig15",
        "Figure 15: peak memory of each device",
        {
            name: [(device, value / _GIB) for device, value in enumerate(values)]
            for name, values in part["strategies"].items()
        },
        _layout("device", "GiB"),
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
