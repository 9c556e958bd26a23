"""What a forecast says of plans: for each way of synchronizing alone what it says for both."""

from dataclasses import replace

import pytest

from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.planner.forecast import forecast
from spindle_sim.planner.make import make_plan
from spindle_sim.workload import builtin_workload

SLOW = replace(parse_cluster("a800:2x4"), oversubscription=4.0)


@pytest.fixture(scope="module", params=["seq", "spindle", "optimus"])
def plan(request: pytest.FixtureRequest) -> Plan:
    """Give a plan whose groups span nodes, on a fabric that they fill."""
    workload = builtin_workload("multitask-clip").with_first_tasks(3)
    return make_plan(workload, SLOW, request.param)


def test_a_forecast_for_one_way_of_synchronizing_is_its_part_of_the_forecast_for_both(
    plan: Plan,
) -> None:
    both = forecast(plan, Estimator(SLOW))
    apart, beside = (forecast(plan, Estimator(SLOW), way) for way in (False, True))

    assert apart.apart_s == apart.beside_s == both.apart_s
    assert beside.apart_s == beside.beside_s == both.beside_s


def test_gradients_that_take_longer_to_synchronize_lengthen_an_iteration_either_way(
    plan: Plan,
) -> None:
    slower = replace(SLOW, nic_bandwidth_bytes_per_s=SLOW.nic_bandwidth_bytes_per_s / 20)
    known, slowed = (
        forecast(replace(plan, cluster=cluster), Estimator(cluster)) for cluster in (SLOW, slower)
    )

    assert slowed.apart_s > known.apart_s
    assert slowed.beside_s > known.beside_s
    assert known.longest_s == max(known.apart_s, known.beside_s)
