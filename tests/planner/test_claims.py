"""What the other slices of a stage lose when devices are taken."""

import numpy as np
import pytest

from spindle_sim.planner.affinity import Group
from spindle_sim.planner.claims import Claims


def two_islands_of_four() -> Claims:
    claims = Claims(2, np.ones(8, dtype=bool))
    # A slice of two devices wants to stay in island 0, where its samples lie on four.
    claims.change(Group((0, 1, 2, 3), 1), 2, 0.5)
    return claims


@pytest.mark.parametrize(
    ("taken", "lost_s"),
    [((0, 1), 0.0), ((0, 1, 2), 0.25), ((0, 1, 2, 3), 0.5), ((4, 5, 6, 7), 0.0)],
)
def test_an_island_gives_devices_away_until_those_claimed_are_left(
    taken: tuple[int, ...], lost_s: float
) -> None:
    assert two_islands_of_four().lost_s(Group(taken, 1)) == pytest.approx(lost_s)


def test_devices_that_are_taken_already_are_no_longer_spare() -> None:
    claims = two_islands_of_four()
    claims.free[[0, 1]] = False
    assert claims.lost_s(Group((2,), 1)) == pytest.approx(0.25)


def test_the_dearest_devices_of_an_island_bear_its_claims() -> None:
    claims = two_islands_of_four()
    scores = np.array([4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert claims.by_device(scores).tolist() == [0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_claim_taken_back_leaves_nothing() -> None:
    claims = two_islands_of_four()
    claims.change(Group((0, 1, 2, 3), 1), -2, -0.5)
    assert claims.lost_s(Group((0, 1, 2, 3), 1)) == 0.0
