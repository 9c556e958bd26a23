"""Link tables of a profile: closed forms between, below and beyond the measured sizes."""

from dataclasses import replace

import pytest

from spindle_sim.estimate import Estimator
from spindle_sim.estimate.links import LinkTable
from spindle_sim.estimate.profile import LinkPoint, OptimizerPoint, dump_profile, parse_profile
from spindle_sim.simulator.collectives import all_reduce_demand
from spindle_sim.simulator.links import cluster_links
from tests.estimate.test_profile import CLUSTER, PROFILE


def point(operation: str, ranks: int, size_bytes: float, time_s: float) -> LinkPoint:
    assert operation in ("transfer", "all_reduce", "all_gather")
    return LinkPoint(
        operation=operation,  # type: ignore[arg-type]
        reach="island",
        ranks=ranks,
        size_bytes=size_bytes,
        time_s=time_s,
    )


LINKS = (
    point("transfer", 2, 1e3, 1e-4),
    point("transfer", 2, 1e6, 1e-3),
    point("all_reduce", 2, 1e3, 5e-4),
    point("all_reduce", 2, 1e6, 2e-3),
    point("all_reduce", 4, 1e6, 6e-3),
)
MEASURED = replace(
    PROFILE,
    links=LINKS,
    optimizer=(
        OptimizerPoint(parameters=1e6, time_s=2e-3),
        OptimizerPoint(parameters=3e6, time_s=4e-3),
    ),
)


@pytest.mark.parametrize(
    ("size_bytes", "expected_s"),
    [(10.0, 1e-4), (1e3, 1e-4), (500_500.0, 5.5e-4), (1e6, 1e-3), (4e6, 4e-3)],
)
def test_a_message_takes_what_was_measured_between_below_and_beyond(
    size_bytes: float, expected_s: float
) -> None:
    assert Estimator(CLUSTER, MEASURED).transfer_s(size_bytes, 0, 1) == pytest.approx(expected_s)


def test_sizes_of_a_plan_count_as_wide_as_the_measured_elements() -> None:
    wide = Estimator(CLUSTER, replace(MEASURED, element_bytes=4.0))
    narrow = Estimator(CLUSTER, MEASURED)
    assert wide.transfer_s(250_250.0, 0, 1) == pytest.approx(narrow.transfer_s(500_500.0, 0, 1))


def test_a_group_between_two_measured_ones_lies_between_them() -> None:
    estimator = Estimator(CLUSTER, MEASURED)
    assert estimator.all_reduce_s(1e6, [0, 1, 2]) == pytest.approx(4e-3)


def test_what_was_not_measured_is_modelled() -> None:
    measured, modelled = Estimator(CLUSTER, MEASURED), Estimator(CLUSTER)
    assert measured.all_reduce_s(1e6, range(8)) == modelled.all_reduce_s(1e6, range(8))
    assert measured.all_gather_s(1e6, [0, 1]) == modelled.all_gather_s(1e6, [0, 1])
    assert measured.transfer_s(1e6, 0, 0) == modelled.transfer_s(1e6, 0, 0)
    assert LinkTable.of(MEASURED, CLUSTER).find("all_reduce", 1e6, [0]) is None


def test_other_islands_are_not_those_that_were_measured() -> None:
    two = replace(CLUSTER, num_nodes=2)
    assert LinkTable.of(MEASURED, two).find("transfer", 1e6, [0, 8]) is None
    assert LinkTable.of(MEASURED, two).find("transfer", 1e6, [8, 9]) is not None


@pytest.mark.parametrize("size_bytes", [10.0, 1e4, 3e6])
def test_the_simulators_demand_alone_takes_the_measured_time(size_bytes: float) -> None:
    estimator, links = Estimator(CLUSTER, MEASURED), cluster_links(CLUSTER)
    demand = all_reduce_demand(estimator, links, size_bytes, [2, 3])
    rates = [links.capacities[link] / load for link, load in demand.loads]
    rate = min([demand.limit_bytes_per_s, *rates])
    alone_s = demand.latency_s + demand.size_bytes / rate
    assert alone_s == pytest.approx(estimator.all_reduce_s(size_bytes, [2, 3]))


@pytest.mark.parametrize(
    ("parameters", "expected_s"), [(0.5e6, 1e-3), (1e6, 2e-3), (2e6, 3e-3), (6e6, 8e-3)]
)
def test_the_optimizer_step_takes_what_was_measured(parameters: float, expected_s: float) -> None:
    assert Estimator(CLUSTER, MEASURED).optimizer_step_s(parameters) == pytest.approx(expected_s)


def test_a_profile_of_the_format_before_is_read() -> None:
    text = dump_profile(PROFILE)
    for field in ('"optimizer": [],', '"element_bytes": 2.0,'):
        assert field in text
        text = text.replace(field, "")
    assert parse_profile(text, "old.json") == PROFILE
