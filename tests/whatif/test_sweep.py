"""Sweeps in processes: the same results as in one, in order, and nothing left when they end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spindle_sim import builtin_workload, make_plan, parse_cluster, simulate, summarize
from spindle_sim.cli.comparison import Comparison, compare_strategies
from spindle_sim.errors import UsageError
from spindle_sim.whatif import Point, evaluate, sweep

SWEEP = [sys.executable, "-m", "spindle_sim", "sweep", "--cluster", "a800:8x8"]
LONG = [*SWEEP, "--tasks", "10", "--batch-scale", ",".join(f"{n}" for n in range(1, 60))]


def point(strategy: str, cluster: str = "a800:1x4", workload: str = "multitask-clip") -> Point:
    return Point(
        labels=(("cluster", cluster), ("strategy", strategy)),
        workload=builtin_workload(workload).with_first_tasks(2),
        cluster=parse_cluster(cluster),
        strategy=strategy,
    )


def test_a_point_has_the_figures_of_its_plan() -> None:
    one = point("spindle")
    plan = make_plan(one.workload, one.cluster, "spindle", overlap_sync=False)
    summary = summarize(plan, simulate(plan))
    result = evaluate(one)
    assert result.figures is not None
    assert result.figures.iteration_s == summary.iteration_s
    assert result.figures.sync_s == summary.sync_s
    assert result.figures.rounds == len({item.round for item in plan.slices})
    assert result.profile == plan.profile
    assert result.error == ""


def test_an_infeasible_point_is_a_result_that_says_why() -> None:
    result = evaluate(point("seq", "a800:1x1", "qwen-val"))
    assert result.figures is None
    assert "device" in result.error


def test_processes_give_what_one_gives_in_the_order_of_the_points() -> None:
    points = [
        point("seq"),
        point("seq", "a800:1x1", "qwen-val"),
        point("uniform"),
        point("seq", "a800:1x2"),
    ]
    told: list[Point] = []
    alone = sweep(points, 1, told.append)
    assert told == points
    told.clear()
    assert sweep(points, 2, told.append) == alone
    assert sorted(told, key=points.index) == points
    assert [result.figures is None for result in alone] == [False, True, False, False]
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_the_processes() -> None:
    def interrupt(_: Point) -> None:
        raise KeyboardInterrupt

    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep([point("seq")] * 200, 2, interrupt)
    assert multiprocessing.active_children() == []
    assert time.monotonic() - begun_s < 30, "200 points would take longer"


def test_what_goes_wrong_in_a_process_comes_out_and_ends_the_others() -> None:
    with pytest.raises(UsageError, match="no strategy 'none'"):
        sweep([point("seq"), point("none")], 2, lambda _: None)
    assert multiprocessing.active_children() == []


def started() -> subprocess.Popen[str]:
    """Give a long sweep in a process group of its own, once its workers run."""
    process = subprocess.Popen(
        LONG, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline_s = time.monotonic() + 30
    while len(children.read_text().split()) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return process


def group_is_gone(group: int, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


on_linux = pytest.mark.skipif(
    not Path("/proc/self/task").exists() or (os.cpu_count() or 1) < 2,
    reason="needs /proc and two cores",
)


@on_linux
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5, 2.0])
def test_ctrl_c_leaves_neither_a_traceback_nor_a_process(after_s: float) -> None:
    process = started()
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == ""
    assert stderr in ("", "interrupted\n")
    assert group_is_gone(process.pid, within_s=5)


@on_linux
def test_workers_do_not_outlive_a_process_that_was_killed() -> None:
    process = started()
    process.kill()
    process.communicate(timeout=30)
    assert group_is_gone(process.pid, within_s=20)


def test_all_strategies_of_a_comparison_shard_where_one_does_as_spindle_compare_has_it() -> None:
    names = ("spindle", "seq", "megatron")
    workload, cluster = builtin_workload("ofasys").with_first_tasks(2), parse_cluster("a800:1x8")
    points = [
        Point(
            labels=(("cluster", "a800:1x8"), ("strategy", name)),
            workload=workload,
            cluster=cluster,
            strategy=name,
            overlap_sync=True,
        )
        for name in names
    ]
    compared = compare_strategies(
        Comparison(workload=workload, cluster=cluster, strategies=names), lambda _: None
    )
    expected = [one.result.summary.iteration_s for one in compared if one.result is not None]
    swept = sweep(points, 1, lambda _: None)

    assert [one.figures.iteration_s for one in swept if one.figures is not None] == expected
    assert all(one.zero1 for one in swept)
    # By itself it does not, and nothing is known of what another comparison has.
    alone = replace(points[1], labels=(("cluster", "another"), ("strategy", "seq")))
    assert not sweep([*points, alone], 1, lambda _: None)[-1].zero1
