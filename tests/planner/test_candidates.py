"""Groups of free devices worth considering."""

import numpy as np
import pytest

from spindle_sim.planner.candidates import best_units, strided

INF = np.inf


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        # the cheapest island that has room, although cheaper units lie apart
        ([0, 9, 9, 9, 0, 1, 2, 9], 3, (4, 5, 6)),
        # of equal islands the one with least room
        ([0, 0, 0, 0, 0, 0, INF, INF], 2, (4, 5)),
        # no island has room: whole ones first
        ([5, 5, 5, 5, 0, INF, 0, 0], 5, (0, 1, 2, 3, 4)),
        ([0, 0, INF, INF, 0, 0, 0, INF], 4, (0, 4, 5, 6)),
    ],
)
def test_a_group_lies_in_as_few_islands_as_possible(
    scores: list[float], count: int, expected: tuple[int, ...]
) -> None:
    assert best_units(np.array([scores], dtype=float), count, 2) == [expected]


def test_rows_that_agree_give_one_group_and_rows_without_room_none() -> None:
    scores = np.array([[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0], [INF, INF, INF, 0.0]])
    assert best_units(scores, 2, 2) == [(0, 1)]


def test_a_shrinking_group_keeps_every_second_device() -> None:
    assert strided((0, 1, 2, 3, 4, 5, 6, 7), 4) == (0, 2, 4, 6)
    assert strided((3, 1, 2), 2) == (3, 1)
