"""The report: self-contained, escaped, the same each time, and with the timeline's own numbers."""

import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from spindle_sim.cluster import parse_cluster
from spindle_sim.errors import UsageError
from spindle_sim.metrics import PathKind, critical_path, summarize
from spindle_sim.plan import Plan
from spindle_sim.planner.contract import contract
from spindle_sim.report import Curve, Run, render_report, write_report
from spindle_sim.report.content import page_content
from spindle_sim.report.curves import scaling_curves
from spindle_sim.report.path import path_line
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Timeline
from tests.pipelines import pipelined_plan
from tests.plan.mutations import change
from tests.random_plans import plans
from tests.report.pages import (
    crowded_run,
    data_of,
    decoded,
    hostile_plan,
    stated_spans,
    two_runs,
)


class Outline(HTMLParser):
    """Collects elements, their ids and references, and the text outside of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.labels: dict[str, str] = {}
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[name] for name in ("src", "href") if name in found]
        if "aria-label" in found:
            self.labels[found.get("id", "")] = found["aria-label"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_report_is_one_file_that_needs_nothing_else() -> None:
    outline = Outline(render_report(two_runs()))
    assert outline.links == []
    assert outline.tags.count("script") == 3  # data, plotly.js, ours
    assert len(outline.ids) == len(set(outline.ids))
    for chart in ("gantt", "time", "breakdown", "device", "memory", "metaop", "curves"):
        assert outline.labels[chart]
    assert {"main", "h1", "h2", "noscript"} <= set(outline.tags)


def test_the_tables_have_the_figures_of_all_strategies() -> None:
    runs = two_runs()
    texts = Outline(render_report(runs)).texts
    summary = summarize(runs[0].plan, runs[0].timeline)
    assert "hand-made (fastest)" in texts
    assert f"{1e3 * summary.iteration_s:,.1f}" in texts
    assert (
        f"{100 * summary.utilization:.2f}" in texts or f"{100 * summary.utilization:.5f}" in texts
    )
    assert any("2 tasks (t, u)" in text for text in texts)
    assert texts.count("Idle (ms)") == 1
    assert {"Optimizer step (ms)", "Synchronization (ms)", "Rounds", "Recomputed MetaOps"} <= {
        *texts
    }


def test_speed_ups_are_against_seq_or_the_first_and_bigger_is_better() -> None:
    first, other = two_runs()
    slow = change("slices", 4, forward_s=60.0)(first.plan)
    seq = Run(plan=replace(slow, strategy="seq"), timeline=simulate(slow))
    gain = seq.timeline.iteration_s / first.timeline.iteration_s
    assert gain > 1.5
    texts = Outline(render_report([first, seq])).texts
    assert "Speed-up vs seq" in texts
    assert f"{gain:.2f}x" in texts
    assert "Speed-up vs hand-made" in Outline(render_report([first, other])).texts


def test_one_strategy_is_not_compared_with_itself() -> None:
    (run, _) = two_runs()
    html = render_report([run]).split("<script", 1)[0]
    assert "Speed-up" not in html
    assert "fastest" not in html
    assert 'name="run"' not in html
    assert "one time scale" not in html
    assert "under the strategy hand-made" in html


def test_stages_are_numbered_without_holes_and_keep_the_plans_own() -> None:
    plan = change("slices", 3, stage=7)(change("slices", 4, stage=7)(two_runs()[0].plan))
    (run,) = data_of(render_report([Run(plan=plan, timeline=simulate(plan))]))["runs"]
    assert run["num_stages"] == 3
    assert [(item[3], item[13]) for item in run["slices"]] == [
        (0, 1),
        (0, 1),
        (1, 2),
        (7, 3),
        (7, 3),
    ]


def test_the_optimizer_step_is_apart_from_synchronization() -> None:
    (run, _) = two_runs()
    summary = summarize(run.plan, run.timeline)
    (content,) = data_of(render_report([run]))["runs"]
    parts = content["breakdown_ms"]
    assert 0 < summary.optimizer_s < summary.sync_s
    assert parts[1] == pytest.approx(1e3 * (summary.sync_s - summary.optimizer_s), rel=1e-5)
    assert parts[2] == pytest.approx(1e3 * summary.optimizer_s, rel=1e-5)
    assert sum(parts) == pytest.approx(1e3 * summary.iteration_s, rel=1e-4)


def test_names_are_text_and_never_markup() -> None:
    plan = hostile_plan()
    html = render_report([Run(plan=plan, timeline=simulate(plan))])
    assert "<script>alert" not in html
    assert "<b>&amp;" not in html.split('id="data"')[0]
    outline = Outline(html)
    assert outline.tags.count("script") == 3
    assert any(plan.workload.name in text for text in outline.texts)
    content = data_of(html)
    assert content["runs"][0]["name"] == plan.strategy
    assert content["categories"][0]["name"] == plan.workload.tasks[0].name


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    write_report(tmp_path / "a.html", two_runs())
    write_report(tmp_path / "b.html", two_runs())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_no_runs_and_no_place_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one run"):
        render_report([])
    with pytest.raises(UsageError, match="can't be written"):
        write_report(tmp_path / "none" / "a.html", two_runs())


@given(plans())
@settings(max_examples=25)
def test_the_page_holds_exactly_the_spans_of_the_timeline(plan: Plan) -> None:
    timeline = simulate(plan)
    content: Any = page_content(
        [Run(plan=plan, timeline=timeline)],
        [summarize(plan, timeline)],
        (),
        [critical_path(plan, timeline)],
    )
    (run,) = content["runs"]
    assert run["tick_ms"] == pytest.approx(1e-6)
    assert decoded(run, content) == stated_spans(timeline, 1e-9)


@given(plans())
@settings(max_examples=25)
def test_the_line_of_the_critical_path_has_its_steps_those_of_one_row_together(plan: Plan) -> None:
    timeline = simulate(plan)
    path = critical_path(plan, timeline)
    line = path_line(path)
    ends_ms = line["ends_ms"]
    assert ends_ms == sorted(ends_ms)
    assert ends_ms[-1] == pytest.approx(1e3 * timeline.iteration_s, rel=1e-9)
    rows = list(zip(line["devices"], line["bands"], strict=True))
    assert all(one != other for one, other in pairwise(rows))
    moving = (PathKind.TRANSFER, PathKind.SYNCHRONIZATION)
    stated = [(step.device, int(step.kind in moving)) for step in path.steps]
    assert [row for row, _ in groupby(stated)] == rows


def test_the_table_of_the_critical_path_has_the_parts_of_every_strategy() -> None:
    runs = two_runs()
    path = critical_path(runs[0].plan, runs[0].timeline)
    for html in (render_report(runs), render_report(runs[:1])):
        texts = Outline(html.split('<section id="path"')[1].split("</section>")[0]).texts
        assert any("each of which waits for the one before" in text for text in texts)
        assert any(text.startswith("computing t/a/x") for text in texts)
        longest = max(share.compute_s for share in path.by_metaop())
        assert f"{1e3 * longest:,.1f}" in texts
        assert "gaps that no span explains" not in texts


def test_an_iteration_of_an_hour_still_fits_its_integers() -> None:
    plan = two_runs()[0].plan
    slow = change("slices", 4, forward_s=3600.0)(plan)
    timeline = simulate(slow)
    content: Any = page_content(
        [Run(plan=slow, timeline=timeline)],
        [summarize(slow, timeline)],
        (),
        [critical_path(slow, timeline)],
    )
    (run,) = content["runs"]
    assert run["tick_ms"] == pytest.approx(1e-3)
    assert decoded(run, content) == stated_spans(timeline, run["tick_ms"] / 1e3)


def test_a_timeline_without_spans_makes_a_report() -> None:
    plan = two_runs()[0].plan
    empty = Timeline(backend="none", num_devices=8, spans=())
    (run,) = data_of(render_report([Run(plan=plan, timeline=empty)]))["runs"]
    assert run["counts"] == [0] * 8


def test_given_curves_are_drawn_as_they_are() -> None:
    curve = Curve(name="t/a/x", points=((1, 4e-3), (2, 2.5e-3)))
    content = data_of(render_report(two_runs(), curves=[curve]))
    line = content["curves"]["data"][1]
    assert (line["x"], line["y"]) == ([1, 2], [4.0, 2.5])
    assert line["line"]["color"] == content["categories"][0]["colour"]
    assert data_of(render_report(two_runs(), curves=[]))["curves"] is None


def test_curves_come_from_the_model_only_if_the_plans_times_did() -> None:
    from spindle_sim.estimate import Estimator

    plan = two_runs()[0].plan
    assert scaling_curves(plan) == ()
    modelled = replace(plan, cluster=parse_cluster("a800:2x4"))
    estimator = Estimator(modelled.cluster)
    inputs = replace(plan.inputs, profile=estimator.profile_hash)
    curves = scaling_curves(replace(modelled, inputs=inputs))
    node = contract(plan.workload).nodes["t/a/x"]
    wanted = estimator.curve(node.operator, node.metaop.backward)
    assert [found.name for found in curves] == [metaop.id for metaop in plan.metaops]
    assert curves[0].points == tuple((n, wanted.time_s(n)) for n in wanted.allocations)


def test_fifty_thousand_spans_are_a_small_page_made_fast() -> None:
    run = crowded_run()
    assert len(run.timeline.spans) > 50_000
    started = time.process_time()
    html = render_report([run])
    assert time.process_time() - started < 5.0
    assert len(html) < 6_000_000  # of which plotly.js is 4.8


def long_pipeline() -> Run:
    """Two stages of 2 s forwards and backwards, interleaved micro-batches: over ten seconds."""
    plan = replace(
        pipelined_plan(ranks=2, chunks=2, micro_batches=4, dp=2, forward_s=2.0, backward_s=2.0),
        strategy="megatron",
    )
    return Run(plan=plan, timeline=simulate(plan))


def test_each_task_is_listed_with_its_parallel_configuration() -> None:
    run = long_pipeline()
    page = render_report([run], curves=[])
    row = (
        f'<tr><th scope="row">megatron</th><td class="text">{run.plan.workload.tasks[0].name}</td>'
        '<td class="text">1 x 2 x 2</td><td class="text">interleaved, 2 chunks a rank</td>'
        '<td class="text">-</td><td>0</td><td>4</td></tr>'
    )
    assert row in page
    assert "can&#x27;t be compared" in page
    seq = replace(run.plan, strategy="seq")
    assert row not in render_report([Run(plan=seq, timeline=run.timeline)], curves=[])


def test_iterations_of_many_seconds_are_shown_in_seconds() -> None:
    run = long_pipeline()
    page = render_report([run], curves=[])
    texts = Outline(page).texts
    assert run.timeline.iteration_s > 10
    assert texts[texts.index("Iteration (s)") + 1] == f"{run.timeline.iteration_s:,.2f}"
    assert "Idle (s)" in texts
    assert "Idle (ms)" not in texts
