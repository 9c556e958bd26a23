from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.simulator.fairness import Loads, fair_rates

ROUNDING = 1e-9


def test_two_streams_on_one_link_get_half_each() -> None:
    assert fair_rates([((0, 1.0),), ((0, 1.0),)], [50.0], [inf, inf]) == [25.0, 25.0]


def test_what_one_stream_cannot_use_goes_to_the_other() -> None:
    # Stream 0 is held to 10 by link 1; stream 1 takes the other 40 of link 0.
    loads: list[Loads] = [((0, 1.0), (1, 1.0)), ((0, 1.0),)]
    assert fair_rates(loads, [50.0, 10.0], [inf, inf]) == [10.0, 40.0]


def test_a_limit_holds_a_stream_below_its_links() -> None:
    assert fair_rates([((0, 1.0),), ((0, 1.0),)], [50.0], [5.0, inf]) == [5.0, 45.0]


def test_a_stream_of_three_messages_takes_three_shares() -> None:
    assert fair_rates([((0, 3.0),), ((0, 1.0),)], [40.0], [inf, inf]) == [10.0, 10.0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Loads], list[float], list[float]]:
    num_links = draw(st.integers(1, 6))
    capacities = draw(st.lists(st.floats(1.0, 1e3), min_size=num_links, max_size=num_links))
    uses = st.dictionaries(
        st.integers(0, num_links - 1), st.sampled_from([0.25, 0.5, 1.0, 3.0]), min_size=1
    )
    loads = draw(st.lists(uses.map(lambda use: tuple(sorted(use.items()))), min_size=1, max_size=8))
    limit = st.one_of(st.just(inf), st.floats(0.1, 1e3))
    return loads, capacities, draw(st.lists(limit, min_size=len(loads), max_size=len(loads)))


@given(cases())
def test_no_link_carries_more_than_its_capacity(
    case: tuple[list[Loads], list[float], list[float]],
) -> None:
    loads, capacities, limits = case
    rates = fair_rates(loads, capacities, limits)
    for link, capacity in enumerate(capacities):
        carried = sum(r * dict(use).get(link, 0.0) for r, use in zip(rates, loads, strict=True))
        assert carried <= capacity * (1 + ROUNDING)
    assert all(rate <= limit for rate, limit in zip(rates, limits, strict=True))


@given(cases())
def test_no_stream_can_gain_without_an_equal_or_slower_one_losing(
    case: tuple[list[Loads], list[float], list[float]],
) -> None:
    """Max-min: each stream is at its limit, or on a full link where no stream is faster."""
    loads, capacities, limits = case
    rates = fair_rates(loads, capacities, limits)
    for rate, use, limit in zip(rates, loads, limits, strict=True):
        held = rate >= limit * (1 - ROUNDING)
        for link, _ in use:
            users = [
                (r, dict(u)[link]) for r, u in zip(rates, loads, strict=True) if link in dict(u)
            ]
            full = sum(r * load for r, load in users) >= capacities[link] * (1 - ROUNDING)
            held = held or (full and max(r for r, _ in users) <= rate * (1 + ROUNDING))
        assert held


@given(cases(), st.permutations(range(8)))
def test_the_order_of_the_streams_does_not_matter(
    case: tuple[list[Loads], list[float], list[float]], order: list[int]
) -> None:
    loads, capacities, limits = case
    order = [index for index in order if index < len(loads)]
    rates = fair_rates(loads, capacities, limits)
    mixed = fair_rates([loads[i] for i in order], capacities, [limits[i] for i in order])
    assert mixed == pytest.approx([rates[i] for i in order])
