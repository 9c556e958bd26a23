"""The rules by which a statement is met, on values made by hand."""

import pytest

from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.rules import (
    Found,
    Rule,
    Statement,
    distance,
    is_met,
    judge,
    middle_half,
)


@pytest.mark.parametrize(
    ("ours", "met"), [(1.0, True), (0.9, True), (1.1, True), (0.899, False), (1.101, False)]
)
def test_a_stated_number_is_met_within_ten_percent_of_it(ours: float, met: bool) -> None:
    assert is_met(Rule.RATIO, (1.0,), Found(values=(ours,))) is met


def test_ten_percent_are_of_the_papers_number_not_of_ours() -> None:
    assert is_met(Rule.RATIO, (1.71,), Found(values=(1.539,)))
    assert not is_met(Rule.RATIO, (1.71,), Found(values=(1.53,)))


@pytest.mark.parametrize(
    ("ends", "met"),
    [((1.31, 1.63), True), ((1.25, 1.75), True), ((1.1, 1.63), False), ((1.31, 1.9), False)],
)
def test_a_range_is_met_where_both_of_its_ends_are(ends: tuple[float, float], met: bool) -> None:
    assert is_met(Rule.RANGE, (1.31, 1.63), Found(values=ends)) is met


@pytest.mark.parametrize(
    ("ends", "met"),
    [((0.8, 0.95), True), ((0.9, 0.91), True), ((0.72, 1.04), True), ((0.7, 0.9), False)],
)
def test_what_is_typical_lies_between_the_ends(ends: tuple[float, float], met: bool) -> None:
    assert is_met(Rule.TYPICALLY, (0.8, 0.95), Found(values=ends)) is met


def test_the_middle_half_leaves_out_a_quarter_at_each_end() -> None:
    assert middle_half([9.0, 1.0, 3.0, 2.0, 4.0]) == (2.0, 4.0)
    assert middle_half([5.0]) == (5.0, 5.0)


def test_a_distance_is_relative_to_what_is_stated_and_none_within_a_bound() -> None:
    def apart(rule: Rule, paper: tuple[float, ...], *values: float) -> float:
        one = Statement(id="x", section="5", text="", rule=rule, paper=paper, find=lambda _: None)
        return distance(one, Found(values=values))

    assert apart(Rule.RATIO, (2.0,), 1.0) == 0.5
    assert apart(Rule.RANGE, (1.0, 2.0), 1.1, 3.0) == 0.5
    assert apart(Rule.AT_MOST, (2.0,), 1.0) == 0
    assert apart(Rule.AT_MOST, (2.0,), 3.0) == 0.5
    assert apart(Rule.AT_LEAST, (2.0,), 1.0) == 0.5
    assert apart(Rule.TYPICALLY, (1.0, 2.0), 1.5, 3.0) == 0.5


def test_a_bound_is_met_up_to_it_and_not_ten_percent_beyond() -> None:
    assert is_met(Rule.AT_MOST, (0.07,), Found(values=(0.01, 0.07)))
    assert not is_met(Rule.AT_MOST, (0.07,), Found(values=(0.01, 0.0701)))
    assert is_met(Rule.AT_LEAST, (2.0,), Found(values=(2.0, 5.0)))
    assert not is_met(Rule.AT_LEAST, (2.0,), Found(values=(1.9, 5.0)))


def test_a_comparison_is_met_where_it_holds() -> None:
    assert is_met(Rule.HOLDS, (), Found(holds=True))
    assert not is_met(Rule.HOLDS, (), Found(holds=False))


def test_what_was_not_run_is_neither_met_nor_unmet() -> None:
    statement = Statement(
        id="x", section="5", text="", rule=Rule.RATIO, paper=(1.0,), find=lambda _: None
    )
    verdict = judge(statement, Evidence(results=()))
    assert verdict.met is None
    assert verdict.found is None
