"""Bubbles of pipelines among the reasons why devices idle."""

import pytest

from spindle_sim.metrics import IdleKind, idle_reasons
from spindle_sim.plan import Order, Plan, schedule
from spindle_sim.simulator import simulate
from tests.pipelines import pipelined_plan

NEARLY = 1e-5  # an optimizer steps within a bubble, if only one parameter
BUBBLES = (IdleKind.FILL, IdleKind.NEIGHBOUR, IdleKind.DRAIN)


def seconds_of(plan: Plan) -> dict[IdleKind, float]:
    """Device-seconds by kind, with transfers free."""
    found: dict[IdleKind, float] = {}
    for reason in idle_reasons(plan, simulate(plan, network=False), top=1000):
        found[reason.kind] = found.get(reason.kind, 0.0) + reason.device_seconds
    return found


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 6), (8, 16)])
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (1, 2)])
def test_equal_stages_wait_for_the_known_part_of_a_pipelines_time(
    ranks: int, micro_batches: int, dp: int, tp: int
) -> None:
    plan = pipelined_plan(ranks=ranks, micro_batches=micro_batches, dp=dp, tp=tp, parameters=1)
    seconds = seconds_of(plan)
    bubbles_s = sum(seconds.get(kind, 0.0) for kind in BUBBLES)

    # Of the pipeline's time (p - 1) / (m + p - 1), on each device; and devices wait for nothing
    # else but those whose optimizer steps longer.
    whole_s = ranks * dp * tp * schedule(plan).makespan_s
    assert bubbles_s / whole_s == pytest.approx(
        (ranks - 1) / (micro_batches + ranks - 1), rel=NEARLY
    )
    assert not seconds.keys() - {*BUBBLES, IdleKind.END, IdleKind.UNUSED}


def test_each_bubble_is_when_it_is() -> None:
    # Two stages, two micro-batches, forwards of 1 s and backwards of 2 s: the second stage waits a
    # second for the first forward, and two after its last backward (7 s to 9 s); the first one from
    # its second forward's end (2 s) to the first gradient (4 s), and from 6 s to 7 s.
    seconds = seconds_of(pipelined_plan(ranks=2, micro_batches=2, parameters=1))
    assert seconds[IdleKind.FILL] == pytest.approx(1.0, rel=NEARLY)
    assert seconds[IdleKind.DRAIN] == pytest.approx(5.0, rel=NEARLY)
    assert IdleKind.NEIGHBOUR not in seconds


def test_in_between_a_stage_waits_for_its_slower_neighbour() -> None:
    # Each of eight times the first stage is a second sooner than the second one.
    plan = pipelined_plan(ranks=2, micro_batches=8, forward_s=(1.0, 2.0))
    assert seconds_of(plan)[IdleKind.NEIGHBOUR] > 0


def test_the_texts_name_the_task_and_other_orders_have_no_bubbles() -> None:
    plan = pipelined_plan(ranks=4, micro_batches=8)
    reasons = idle_reasons(plan, simulate(plan))
    task = plan.workload.tasks[0].name
    assert any("fills" in reason.text and reason.task == task for reason in reasons)
    flushed = pipelined_plan(ranks=4, micro_batches=8, order=Order.FLUSH)
    assert not set(seconds_of(flushed)) & set(BUBBLES)
