"""Scaling curves as small charts: by block, ticks at the allocations, names at the lines."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spindle_sim.report import Curve, write_curves
from spindle_sim.report.curves_figure import curves_figure, panels


def halving(name: str, first_s: float, allocations: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Curve:
    return Curve(name=name, points=tuple((n, first_s / n) for n in allocations))


def test_tasks_that_share_a_block_share_a_chart_and_equal_curves_a_line() -> None:
    curves = [halving("t/a/x", 1.0), halving("u/a/x", 1.0), halving("v/a/x", 2.0)]
    curves.append(halving("t/b/x", 9.0))
    found = panels(curves)
    assert [panel.name for panel in found] == ["b/x", "a/x"]
    assert [names for _, names in found[1].lines] == [("t", "u"), ("v",)]


def test_ticks_are_the_allocations_and_times_have_their_unit() -> None:
    figure: Any = curves_figure([halving("t/a/x", 1e-3)], {"t": 0})
    axis = figure["layout"]["xaxis"]
    assert axis["tickvals"] == [1, 2, 4, 8, 16]
    assert axis["ticktext"] == ["1", "2", "4", "8", "16"]
    times = figure["layout"]["yaxis"]["ticktext"]
    assert "1 ms" in times
    assert "0.5 ms" in times
    assert all(text.endswith(" ms") for text in times)


def test_ticks_that_would_touch_are_left_out_but_the_last_is_not() -> None:
    many = halving("t/a/x", 1.0, (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60))
    figure: Any = curves_figure([many], {})
    ticks = figure["layout"]["xaxis"]["tickvals"]
    assert ticks[0] == 1
    assert ticks[-1] == 60
    assert all(b >= 1.45 * a for a, b in pairwise(ticks))


@pytest.mark.parametrize("seconds", [3e-4, 7e-3, 0.0])
def test_a_flat_curve_still_has_ticks_on_both_axes(seconds: float) -> None:
    flat = Curve(name="t/a/x", points=((1, seconds), (2, seconds)))
    figure: Any = curves_figure([flat], {})
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < high
    assert len(figure["layout"]["yaxis"]["tickvals"]) >= 2


def test_lines_that_begin_together_share_a_name() -> None:
    close = [halving("t/a/x", 1.0), halving("u/a/x", 1.001), halving("v/a/x", 0.1)]
    figure: Any = curves_figure(close, {})
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts == ["<b>a/x</b>", "u + 1", "v"]


def test_names_are_no_markup() -> None:
    figure: Any = curves_figure([halving("<i>t/<b>a/x", 1.0)], {})
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts == ["<b>&lt;b&gt;a/x</b>", "&lt;i&gt;t"]


def test_the_page_of_curves_is_one_file_and_the_same_each_time(tmp_path: Path) -> None:
    curves = [halving("t/a/x", 1.0), halving("u/a/x", 2.0)]
    for name in ("a.html", "b.html"):
        write_curves(tmp_path / name, curves, title="<b>w", note="Times: $x & {y}")
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert html == (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "<h1>&lt;b&gt;w</h1>" in html
    assert "Times: $x &amp; {y}" in html
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="', html)
