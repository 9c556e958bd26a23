"""The report in a real browser, where one is installed: it draws, and changes detail on zoom."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spindle_sim.report import Run, render_report
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind
from tests.report.pages import crowded_run, hostile_plan, two_runs

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


def body_after(html: str, script: str, tmp_path: Path) -> dict[str, str]:
    """Give the data attributes of the body when the page is drawn and `script` has run."""
    assert BROWSER is not None
    hook = (
        "<script>window.addEventListener('error', (e) => { document.body.dataset.failed ="
        " e.message; });(async () => { while (!document.body.dataset.ready) await new"
        f" Promise((go) => setTimeout(go, 20)); {script} }})()</script></body>"
    )
    page = tmp_path / "page.html"
    page.write_text(hook.join(html.rsplit("</body>", 1)), encoding="utf-8")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    body = re.search(r"<body[^>]*>", done.stdout)
    assert body is not None
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', body[0]))
    assert "failed" not in found
    return found


@pytest.mark.slow
def test_many_spans_are_a_heat_map_and_exact_bars_when_zoomed(tmp_path: Path) -> None:
    zoom_and_back = (
        "const found = document.body.dataset;"
        "const settle = () => new Promise((go) => setTimeout(go, 300));"
        "found.whole = found.detail;"
        "await Plotly.relayout('gantt', {'xaxis.range': [40, 41]});"
        "await settle();"
        "found.zoomed = found.detail;"
        "found.rows = document.getElementById('gantt').data.length;"
        "document.querySelector('[data-zoom=all]').click();"
        "await settle();"
    )
    found = body_after(render_report([crowded_run()]), zoom_and_back, tmp_path)
    assert (found["whole"], found["zoomed"], found["detail"]) == ("heatmap", "bars", "heatmap")
    assert int(found["rows"]) > 1


@pytest.mark.slow
def test_another_strategy_can_be_chosen_and_names_stay_text(tmp_path: Path) -> None:
    plan = hostile_plan()
    runs = [*two_runs(), Run(plan=plan, timeline=simulate(plan))]
    choose = (
        "document.querySelectorAll('input[name=run]')[2].click();"
        "await new Promise((go) => setTimeout(go, 300));"
        "document.body.dataset.rows = document.getElementById('stages').rows.length;"
        "document.body.dataset.bold = document.querySelectorAll('main b').length;"
    )
    found = body_after(render_report(runs), choose, tmp_path)
    assert found["rows"] == "1"
    assert found["bold"] == "0"


@pytest.mark.slow
def test_bars_wide_enough_have_names_and_one_strategy_needs_no_choice(tmp_path: Path) -> None:
    (run, _) = two_runs()
    found = body_after(render_report([run]), "", tmp_path)
    assert found["detail"] == "bars"
    computing = sum(span.kind is Kind.COMPUTE for span in run.timeline.spans)
    assert computing // 2 < int(found["labels"]) <= computing


@pytest.mark.slow
def test_the_critical_path_is_a_line_that_can_be_left_out(tmp_path: Path) -> None:
    for run in (two_runs()[0], crowded_run(64, 782)):
        html = render_report([run])
        assert int(body_after(html, "", tmp_path)["critical"]) >= 2
        click = (
            "document.getElementById('critical').click();"
            "await new Promise((go) => setTimeout(go, 300));"
        )
        assert body_after(html, click, tmp_path)["critical"] == ""
        assert int(body_after(html, click + click, tmp_path)["critical"]) >= 2
