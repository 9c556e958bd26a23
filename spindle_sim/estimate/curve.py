"""Scaling curves T_m(n): the piecewise alpha-beta function of appendix A."""

from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["ScalingCurve"]


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


def _interpolate(knots: tuple[int, ...], times_s: tuple[float, ...], n: float) -> float:
    assert knots[0] <= n <= knots[-1], f"n = {n} is outside {knots[0]}..{knots[-1]}"
    right = bisect_left(knots, n)
    if knots[right] == n:
        return times_s[right]
    x0, x1 = 1 / knots[right - 1], 1 / knots[right]
    share = (1 / n - x1) / (x0 - x1)
    return times_s[right] + share * (times_s[right - 1] - times_s[right])
