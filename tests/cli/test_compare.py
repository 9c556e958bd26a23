"""`spindle compare`, in this process: what it prints and that it is the same every time."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spindle_sim import builtin_workload, make_plan, parse_cluster, simulate, summarize
from spindle_sim.cli.application import application
from spindle_sim.cli.comparison import Comparison, compare_strategies
from spindle_sim.cli.traits import plan_note
from spindle_sim.errors import UsageError
from spindle_sim.estimate import save_profile
from spindle_sim.estimate.profile import (
    OperatorPoint,
    Profile,
    ProfiledOperator,
    ProfileProvenance,
)
from spindle_sim.plan import schedule
from spindle_sim.planner import STRATEGIES

FIELDS = {
    "strategy",
    "iteration_s",
    "compute_s",
    "optimum_s",
    "samples_per_s",
    "model_flops_per_s",
    "utilization",
    "forward_backward_s",
    "sync_s",
    "optimizer_s",
    "send_recv_s",
    "idle_s",
    "peak_memory_bytes",
    "gpu_hours_per_iteration",
    "stages",
    "rounds",
    "recomputed_metaops",
    "zero1",
    "zero_stage",
    "tensor_parallel",
    "parallelism",
    "idle_reasons",
    "planning_s",
    "error",
}
SMALL = ["multitask-clip", "--tasks", "2", "--cluster", "a800:1x4"]


def compare(*arguments: str) -> str:
    done = CliRunner().invoke(application(), ["compare", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    return {row["strategy"]: row for row in json.loads(compare(*arguments, "--json"))["strategies"]}


def test_json_has_these_fields_for_every_strategy() -> None:
    document = json.loads(compare(*SMALL, "--json"))
    assert set(document) == {"workload", "cluster", "provenance", "strategies"}
    assert [row["strategy"] for row in document["strategies"]] == list(STRATEGIES)
    for row in document["strategies"]:
        assert set(row) == FIELDS
        assert row["error"] is None


def test_the_figures_are_those_of_the_python_api() -> None:
    row = rows(*SMALL, "--strategies", "spindle")["spindle"]
    workload = builtin_workload("multitask-clip").with_first_tasks(2)
    plan = make_plan(workload, parse_cluster("a800:1x4"), overlap_sync=False)
    summary = summarize(plan, simulate(plan))
    assert row["iteration_s"] == summary.iteration_s
    assert row["compute_s"] == schedule(plan).makespan_s
    assert row["optimum_s"] == plan.optimum_s
    assert row["stages"] == len({(item.round, item.stage) for item in plan.slices})


def test_the_parts_add_up_to_the_iteration() -> None:
    for row in rows(*SMALL).values():
        parts = ("forward_backward_s", "sync_s", "send_recv_s", "idle_s")
        assert sum(row[part] for part in parts) == pytest.approx(row["iteration_s"], rel=1e-9)


def test_the_same_inputs_give_the_same_bytes_but_for_the_planning_time() -> None:
    def text() -> str:
        printed = compare(*SMALL, "--json", "--seed", "3", "--jitter", "0.1")
        return re.sub(r'"planning_s": [^,]+,', "", printed)

    assert text() == text()


def test_jitter_and_seed_change_the_iteration() -> None:
    times = [
        rows(*SMALL, "--strategies", "seq", *more)["seq"]["iteration_s"]
        for more in ([], ["--jitter", "0.1", "--seed", "1"], ["--jitter", "0.1", "--seed", "2"])
    ]
    assert len(set(times)) == 3


def test_overlapped_synchronization_is_faster_where_it_can_be_and_never_slower() -> None:
    some = (*SMALL, "--strategies", "spindle,seq,uniform,optimus,stmm")
    apart, overlapped = rows(*some), rows(*some, "--overlap-sync")
    gains_s = [apart[name]["iteration_s"] - overlapped[name]["iteration_s"] for name in apart]
    assert min(gains_s) >= 0.0
    assert max(gains_s) > 0.0


def test_where_one_system_overlaps_its_synchronization_and_shards_all_do() -> None:
    document = json.loads(compare(*SMALL, "--strategies", "seq,megatron", "--json"))
    workload = builtin_workload("multitask-clip").with_first_tasks(2)
    plan = make_plan(workload, parse_cluster("a800:4"), "seq", zero1=True)
    overlapped = simulate(plan, overlap_sync=True)

    assert document["provenance"]["overlap_sync"] is True
    assert document["strategies"][0]["iteration_s"] == overlapped.iteration_s
    assert document["strategies"][0]["zero1"] is document["strategies"][1]["zero1"] is True
    assert "synchronize gradients beside the backward" in compare(
        *SMALL, "--strategies", "seq,megatron"
    )


def test_the_configuration_of_each_task_is_shown_where_a_strategy_tunes_it() -> None:
    found = rows(*SMALL, "--strategies", "seq,megatron")

    assert found["seq"]["parallelism"] == []
    (first, second) = found["megatron"]["parallelism"]
    assert (first["task"], second["task"]) == ("image-text", "video-audio")
    assert first["tensor"] * first["pipeline"] * first["data"] <= 4
    assert first["micro_batches"] == 1
    assert "tensor x pipeline x data parallelism 1 x 1 x 4" in compare(
        *SMALL, "--strategies", "megatron"
    )


def test_the_network_options_reach_the_cluster() -> None:
    printed = compare(
        *SMALL[:3],
        *("--cluster", "a800:2x2", "--json", "--strategies", "seq"),
        *("--nics-per-node", "1", "--nic-bandwidth", "100Gb/s", "--oversubscription", "2"),
    )
    cluster = json.loads(printed)["cluster"]
    assert cluster["nics_per_node"] == 1
    assert cluster["nic_bandwidth_bytes_per_s"] == 12.5e9
    assert cluster["oversubscription"] == 2.0


def test_the_batch_scale_scales_the_batches() -> None:
    def batches(*more: str) -> list[int]:
        document = json.loads(compare(*SMALL, "--strategies", "seq", "--json", *more))
        return [task["batch_size"] for task in document["workload"]["tasks"]]

    assert batches("--batch-scale", "0.5") == [batch // 2 for batch in batches()]


def test_the_table_marks_the_fastest_and_says_where_the_figures_come_from() -> None:
    printed = compare(*SMALL)
    times_s = {name: row["iteration_s"] for name, row in rows(*SMALL).items()}
    fastest = min(times_s, key=times_s.__getitem__)
    assert f"  {fastest} *" in printed
    for name in STRATEGIES:
        assert re.search(rf"^  {name}\b", printed, re.MULTILINE)
    assert "Simulated, not run." in printed
    assert re.search(r"[\d,]+ parameters", printed)


def test_odd_batches_and_gpus_that_nobody_measured_are_pointed_out() -> None:
    few = ("ofasys", "--tasks", "1", "--strategies", "seq")
    odd = compare(*few, "--cluster", "b200:1x8", "--batch-scale", "0.332")
    usual = compare(*few, "--cluster", "a800:1x8")

    assert "batch 85 can be divided over 1, 5 devices only" in odd
    assert "no measurement of this GPU" in odd
    assert "Note:" not in usual


def test_the_table_says_why_devices_idle() -> None:
    arguments = [*SMALL, "--strategies", "uniform"]  # 1024 samples and 512 on two devices each
    (first, *_) = rows(*arguments)["uniform"]["idle_reasons"]
    assert first["share"] > 0.1
    assert f"{first['share']:.1%}  {first['text']}" in compare(*arguments)


def test_a_strategy_without_a_feasible_plan_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spindle_sim import planner
    from spindle_sim.errors import InfeasibleError

    def refuse(workload: Any, cluster: Any, strategy: str, **rest: Any) -> Any:
        if strategy == "seq":
            raise InfeasibleError("device 0: 3 GiB short; try more devices")
        return make_plan(workload, cluster, strategy, **rest)

    monkeypatch.setattr(planner, "make_plan", refuse)
    steps: list[str] = []
    comparison = Comparison(
        workload=builtin_workload("multitask-clip").with_first_tasks(1),
        cluster=parse_cluster("a800:1x2"),
        strategies=("seq", "spindle"),
    )
    outcomes = compare_strategies(comparison, steps.append)
    assert len(steps) == comparison.num_steps
    assert [outcome.result is None for outcome in outcomes] == [True, False]
    printed = compare(*SMALL, "--strategies", "seq,spindle")
    assert "seq: no plan: device 0: 3 GiB short; try more devices" in printed


def test_a_report_is_written(tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    assert str(report) in compare(*SMALL, "--report", str(report))
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [report]


def curves_of(report: Path) -> list[dict[str, Any]]:
    """Give the lines of the scaling curves in a report's data; none without curves."""
    data = re.search(r'id="data">(.*?)</script>', report.read_text("utf-8"), re.DOTALL)
    assert data is not None
    curves: dict[str, Any] | None = json.loads(data[1])["curves"]
    return [] if curves is None else [trace for trace in curves["data"] if len(trace["y"]) > 1]


def write_profile(path: Path) -> None:
    """Write a profile of the first layers of multitask-clip's text tower: 5 ms a sample."""
    task = builtin_workload("multitask-clip").with_first_tasks(2)
    (layer, tokens), *_ = (
        (block.operator, use.tokens)
        for use in task.tasks[0].uses
        for block in task.module(use.module).blocks
        if block.operator.kind == "transformer_layer"
    )
    points = tuple(
        OperatorPoint(samples=n, forward_s=5e-3 * n, backward_s=1e-2 * n) for n in (1, 1024)
    )
    save_profile(
        Profile(
            format_version="1.0",
            name="slow-box",
            provenance=ProfileProvenance(
                device="A800-SXM4-80GB",
                source="made up for this test",
                date="2026-11-30",
                kind="measured",
                tool="by hand",
            ),
            operators=(ProfiledOperator(operator=layer, tokens=tokens, points=points),),
        ),
        path,
    )


def test_a_report_shows_the_curves_that_the_plan_was_made_with(tmp_path: Path) -> None:
    profile, modelled, measured = (tmp_path / name for name in ("p.json", "a.html", "b.html"))
    write_profile(profile)
    compare(*SMALL, "--strategies", "seq", "--report", str(modelled))
    compare(*SMALL, "--strategies", "seq", "--report", str(measured), "--profile", str(profile))
    assert curves_of(modelled)
    assert curves_of(measured)
    assert max(curve["y"][0] for curve in curves_of(measured)) >= 15 * 512
    assert curves_of(measured) != curves_of(modelled)


def test_simulate_draws_the_curves_of_the_profile_that_it_is_given(tmp_path: Path) -> None:
    profile, plan, report = (tmp_path / name for name in ("p.json", "plan.json", "out.html"))
    write_profile(profile)
    made = ["plan", *SMALL, "--profile", str(profile), "-o", str(plan)]
    assert CliRunner().invoke(application(), made).exit_code == 0
    run = ["simulate", str(plan), "--report", str(report)]
    assert CliRunner().invoke(application(), run).exit_code == 0
    assert curves_of(report) == []
    assert CliRunner().invoke(application(), [*run, "--profile", str(profile)]).exit_code == 0
    assert curves_of(report)


def test_simulate_refuses_a_profile_that_the_plan_was_not_made_from(tmp_path: Path) -> None:
    profile, plan = tmp_path / "p.json", tmp_path / "plan.json"
    write_profile(profile)
    assert CliRunner().invoke(application(), ["plan", *SMALL, "-o", str(plan)]).exit_code == 0
    run = ["simulate", str(plan), "--profile", str(profile), "--report", str(tmp_path / "r.html")]
    with pytest.raises(UsageError, match="was made with other times"):
        CliRunner().invoke(application(), run, catch_exceptions=False)


def test_the_notes_and_the_json_say_how_the_plan_saves_memory() -> None:
    large = ["qwen-val", "--cluster", "a800:2x8", "--strategies", "seq"]
    row = rows(*large)["seq"]
    plan = make_plan(builtin_workload("qwen-val"), parse_cluster("a800:2x8"), "seq")
    assert row["rounds"] == len({item.round for item in plan.slices}) == 3
    assert row["zero1"] is plan.zero1
    assert row["tensor_parallel"] == max(item.tp for item in plan.slices)
    assert row["recomputed_metaops"] == len({item.metaop for item in plan.slices if item.recompute})
    assert f"seq: {plan_note(plan)}\n" in compare(*large)


def test_a_workload_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert CliRunner().invoke(application(), ["init", str(path)]).exit_code == 0
    document = json.loads(compare(str(path), "--cluster", "a800:1x4", "--json"))
    assert document["workload"]["name"] == "my-workload"
    assert [task["name"] for task in document["workload"]["tasks"]] == ["image-chat", "text-chat"]
