"""Scaling curves T_m(n) of section 3.2: the piecewise alpha-beta function of appendix A.

T_m(n) = alpha_i + beta_i * c + beta'_i * w / n for n in [n_(i-1), n_i]: within a piece T is linear
in 1 / n. A function that goes through its value at every border n_i is held as those values; the
coefficients of a piece follow from the two at its ends.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import add

import numpy as np
import numpy.typing as npt

__all__ = ["Piece", "PiecewiseAlphaBeta", "ScalingCurve", "fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece, n from `start` to `end`: seconds fixed, per unit of c, per unit of w / n."""

    start: float
    end: float
    alpha_s: float
    beta_s: float
    beta_work_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseAlphaBeta:
    """T(n), by its values at the borders of its pieces, ascending; one border is a single point."""

    knots: tuple[float, ...]
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that the borders ascend and each has a value."""
        assert len(self.knots) == len(self.times_s) > 0, "as many times as borders, at least one"
        assert all(a < b for a, b in pairwise(self.knots)), "the borders ascend"

    def __call__(self, n: float) -> float:
        """Give T(n), n real from the first border to the last."""
        return _interpolate(self.knots, self.times_s, n)

    def pieces(
        self, *, work: float = 1.0, volume: float = 0.0, beta_s: float = 0.0
    ) -> tuple[Piece, ...]:
        """Give alpha, beta and beta' of each piece.

        Points over n can't tell alpha from beta * c, since neither depends on n: `beta_s` is the
        seconds for each unit of the `volume` c, known from elsewhere. w is `work`.
        """
        found = []
        for (n0, t0), (n1, t1) in pairwise(zip(self.knots, self.times_s, strict=True)):
            slope = (t0 - t1) / (1 / n0 - 1 / n1)
            fixed_s = t1 - slope / n1
            found.append(
                Piece(
                    start=n0,
                    end=n1,
                    alpha_s=fixed_s - beta_s * volume,
                    beta_s=beta_s,
                    beta_work_s=slope / work,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """Seconds of one operator for the whole global batch on n devices, n = dp * tp.

    `allocations` are the valid n, ascending; between two of them T is linear in 1 / n.
    """

    tp: int
    allocations: tuple[int, ...]
    forward_times_s: tuple[float, ...]
    backward_times_s: tuple[float, ...]

    def forward_s(self, n: float) -> float:
        """Give the forward time on n devices (real, from the least to the largest allocation)."""
        return _interpolate(self.allocations, self.forward_times_s, n)

    def backward_s(self, n: float) -> float:
        """Give the backward time on n devices, with the second forward where recomputed."""
        return _interpolate(self.allocations, self.backward_times_s, n)

    def time_s(self, n: float) -> float:
        """Give T_m(n): forward and backward."""
        return self.forward_s(n) + self.backward_s(n)

    @property
    def times_s(self) -> tuple[float, ...]:
        """Give T_m(n) at each allocation."""
        return tuple(map(add, self.forward_times_s, self.backward_times_s))

    @property
    def forward(self) -> PiecewiseAlphaBeta:
        """The forward as a piecewise alpha-beta function."""
        return PiecewiseAlphaBeta(knots=self.allocations, times_s=self.forward_times_s)

    @property
    def backward(self) -> PiecewiseAlphaBeta:
        """The backward as a piecewise alpha-beta function."""
        return PiecewiseAlphaBeta(knots=self.allocations, times_s=self.backward_times_s)


def fit(points: Sequence[tuple[float, float]], *, tolerance: float = 0.0) -> PiecewiseAlphaBeta:
    """Fit the function with the fewest pieces to profiled points (n, T), in any order.

    Borders are dropped one by one, the one first that the fit misses least, while every point
    stays within `tolerance` (relative) of the function; 0 goes through all points. Several points
    of one n count as their mean.
    """
    grouped: dict[float, list[float]] = {}
    for n, time_s in points:
        grouped.setdefault(n, []).append(time_s)
    knots = sorted(grouped)
    means = np.array([float(np.mean(grouped[n])) for n in knots])
    kept, values = list(knots), means
    # The least deviation asked for is rounding, so that a border on a straight line goes.
    bound = max(tolerance, 1e-12)
    while len(kept) > 2:  # noqa: PLR2004
        trials = []
        for border in kept[1:-1]:
            rest = [n for n in kept if n != border]
            trial, deviations = _least_squares(knots, means, rest)
            trials.append((float(np.sum(deviations**2)), float(deviations.max()), rest, trial))
        _, worst, rest, trial = min(trials, key=lambda item: item[:2])
        if worst > bound:
            break
        kept, values = rest, trial
    return PiecewiseAlphaBeta(knots=tuple(kept), times_s=tuple(float(value) for value in values))


_Floats = npt.NDArray[np.float64]


def _least_squares(
    knots: list[float], means: _Floats, borders: list[float]
) -> tuple[_Floats, _Floats]:
    """Give the values at `borders` that fit best in relative terms, and each point's deviation."""
    x = -1.0 / np.array(knots)
    corners = -1.0 / np.array(borders)
    basis = np.stack([np.interp(x, corners, row) for row in np.eye(len(borders))], axis=1)
    weighted = basis / means[:, None]
    solution = np.linalg.lstsq(weighted, np.ones(len(knots)), rcond=None)[0]
    values = np.asarray(solution, dtype=np.float64)
    deviations: _Floats = np.abs(weighted @ values - 1.0)
    return values, deviations


def _interpolate(knots: Sequence[float], times_s: Sequence[float], n: float) -> float:
    assert knots[0] <= n <= knots[-1], f"n = {n} is outside {knots[0]}..{knots[-1]}"
    right = bisect_left(knots, n)
    if knots[right] == n:
        return times_s[right]
    x0, x1 = 1 / knots[right - 1], 1 / knots[right]
    share = (1 / n - x1) / (x0 - x1)
    return times_s[right] + share * (times_s[right - 1] - times_s[right])
