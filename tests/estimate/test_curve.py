from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.estimate.curve import PiecewiseAlphaBeta, ScalingCurve, fit


def test_a_piece_gives_back_its_alpha_beta_and_work() -> None:
    # T = 3 + 2 * c + 5 * w / n with c = 4, w = 10
    curve = PiecewiseAlphaBeta(
        knots=(1, 2, 8), times_s=tuple(3 + 2 * 4 + 5 * 10 / n for n in (1, 2, 8))
    )
    for piece in curve.pieces(work=10, volume=4, beta_s=2):
        assert (piece.alpha_s, piece.beta_s, piece.beta_work_s) == pytest.approx((3, 2, 5))


def test_between_two_points_the_time_is_linear_in_one_over_n() -> None:
    curve = fit([(2, 10.0), (4, 6.0)])
    assert curve(3) == pytest.approx(6 + (1 / 3 - 1 / 4) / (1 / 2 - 1 / 4) * 4)


def test_points_on_one_line_make_one_piece() -> None:
    curve = fit([(n, 0.5 + 8 / n) for n in (1, 2, 3, 4, 8, 16)])
    assert curve.knots == (1, 16)
    assert curve(5) == pytest.approx(0.5 + 8 / 5)


def test_a_change_of_kernels_makes_a_second_piece() -> None:
    def time_s(n: float) -> float:
        return 1 + 16 / n if n <= 4 else 4 + 4 / n

    curve = fit([(n, time_s(n)) for n in (1, 2, 4, 8, 16)])
    assert curve.knots == (1, 4, 16)
    first, second = curve.pieces()
    assert (first.alpha_s, first.beta_work_s) == pytest.approx((1, 16))
    assert (second.alpha_s, second.beta_work_s) == pytest.approx((4, 4))


def test_a_curve_that_rises_again_keeps_its_minimum() -> None:
    points = [(1, 8.0), (2, 4.4), (4, 2.9), (8, 2.5), (16, 3.1), (32, 4.0)]
    curve = fit(points)
    assert [curve(n) for n, _ in points] == pytest.approx([t for _, t in points])
    assert curve(8) == min(curve(n) for n in range(1, 33))


def test_a_flat_curve_is_one_piece_of_its_value() -> None:
    curve = fit([(n, 2.0) for n in (1, 2, 4, 8)])
    (piece,) = curve.pieces()
    assert (piece.alpha_s, piece.beta_work_s) == pytest.approx((2.0, 0.0))


def test_a_single_point_is_a_curve_without_pieces() -> None:
    curve = fit([(4, 1.5)])
    assert curve(4) == 1.5
    assert curve.pieces() == ()


def test_several_times_of_one_allocation_count_as_their_mean() -> None:
    assert fit([(2, 1.0), (2, 3.0)])(2) == pytest.approx(2.0)


def test_outside_its_points_a_curve_has_no_value() -> None:
    curve = fit([(2, 10.0), (4, 6.0)])
    with pytest.raises(AssertionError, match=r"outside 2\.\.4"):
        curve(5)


def test_noise_below_the_tolerance_adds_no_pieces() -> None:
    rng = np.random.default_rng(7)
    allocations = [2**power for power in range(9)]

    def time_s(n: float) -> float:
        return 0.2 + 30 / n if n <= 16 else 1.1 + 15.6 / n

    noisy = [(n, time_s(n) * (1 + 0.02 * rng.uniform(-1, 1))) for n in allocations]
    curve = fit(noisy, tolerance=0.03)
    assert len(curve.pieces()) <= 3
    assert [curve(n) for n in allocations] == pytest.approx(
        [time_s(n) for n in allocations], rel=0.04
    )


POINTS = st.dictionaries(st.integers(1, 1024), st.floats(1e-5, 1e2), min_size=1, max_size=12).map(
    lambda points: sorted(points.items())
)


@given(points=POINTS)
def test_noise_free_points_are_met_exactly(points: list[tuple[int, float]]) -> None:
    curve = fit(points)
    assert [curve(n) for n, _ in points] == pytest.approx([t for _, t in points], rel=1e-9)


@given(points=POINTS, tolerance=st.floats(0.001, 0.5))
def test_no_point_deviates_more_than_the_tolerance(
    points: list[tuple[int, float]], tolerance: float
) -> None:
    curve = fit(points, tolerance=tolerance)
    for n, time_s in points:
        assert abs(curve(n) / time_s - 1) <= tolerance * (1 + 1e-6)


@given(points=POINTS.filter(lambda points: len(points) > 1), share=st.floats(0, 1))
def test_a_scaling_curve_stays_between_its_neighbouring_points(
    points: list[tuple[int, float]], share: float
) -> None:
    allocations, times = zip(*points, strict=True)
    curve = ScalingCurve(
        tp=1, allocations=allocations, forward_times_s=times, backward_times_s=times
    )
    assert curve.forward.knots == curve.backward.knots == allocations
    for n0, n1 in pairwise(allocations):
        n = min(max(n0 + share * (n1 - n0), n0), n1)
        low, high = sorted((curve.forward_s(n0), curve.forward_s(n1)))
        assert low * (1 - 1e-9) <= curve.forward_s(n) <= high * (1 + 1e-9)
        assert curve.time_s(n) == pytest.approx(2 * curve.forward_s(n))
