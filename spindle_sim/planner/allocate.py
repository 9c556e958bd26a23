"""The resource allocator (section 3.3, appendix B): the continuous optimum and its discretization.

Within a MetaLevel the relaxed problem is a malleable project scheduling problem (MPSP): by
Theorem 1 all MetaOps start together, end together at C*, and their allocations n*_m sum to N.

Between two valid allocations a MetaOp is interpolated in its *rate* 1 / T_m(n) (operators per
second). That is what running a share of the time on each of the two gives, so C* is what no
schedule on valid allocations can beat, the device-time of the two tuples sums to N C* exactly, and
conditions (10a) and (10b) hold. Equation (11) interpolates T_m itself, which overstates the time
between valid allocations that lie far apart; `find_inverse_value` gives it for comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = [
    "Allocation",
    "Malleable",
    "Relaxation",
    "Tuple",
    "allocate",
    "find_inverse_value",
    "optimum",
    "optimum_by_equation_11",
]

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Malleable:
    """A MetaOp as the allocator sees it: L_m operators, each T_m(n) seconds on n devices.

    `allocations` are valid and ascending, `times_s` strictly falling: an allocation that is no
    faster than a smaller one is left out, as Theorem 1 asks for a non-increasing T_m.
    """

    id: str
    num_ops: int
    allocations: tuple[int, ...]
    times_s: tuple[float, ...]

    def time_s(self, num_devices: int) -> float:
        """Give T_m(n) of a valid allocation."""
        return self.times_s[self.allocations.index(num_devices)]

    @property
    def hull(self) -> tuple[tuple[int, float], ...]:
        """Points (n, rate) of the upper concave hull of (0, 0) and all (n, 1 / T_m(n))."""
        return _hull(self.allocations, self.times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuple:
    """One discrete ASL-tuple before scheduling: l operators (real before rounding) on n devices."""

    num_devices: int
    num_ops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The bi-point discretization of one MetaOp: n* between two valid allocations.

    `lower.num_devices` may be 0: a dummy, which runs nothing but keeps (10b).
    """

    id: str
    num_devices: float  # n*
    upper: Tuple
    lower: Tuple


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The MPSP of a fixed set of MetaOps on N devices, solvable for many remaining counts at once.

    n_m(rate) is convex piecewise linear: the largest of the lines slope * rate - offset.
    """

    num_devices: int
    slopes: Floats = field(repr=False)  # (M, J): devices per rate
    offsets: Floats = field(repr=False)  # (M, J)
    fastest_s: Floats = field(repr=False)  # (M,): the shortest T_m

    @classmethod
    def of(cls, metaops: Sequence[Malleable], num_devices: int) -> "Relaxation":
        """Prepare the relaxation of these MetaOps on `num_devices` devices."""
        hulls = [metaop.hull for metaop in metaops]
        width = max(len(hull) - 1 for hull in hulls)
        slopes, offsets = np.zeros((len(hulls), width)), np.zeros((len(hulls), width))
        for row, hull in enumerate(hulls):
            for column, ((n0, r0), (n1, r1)) in enumerate(pairwise(hull)):
                slopes[row, column] = (n1 - n0) / (r1 - r0)
                offsets[row, column] = slopes[row, column] * r0 - n0
        # Short hulls are filled with their first line, which changes no maximum.
        for row, hull in enumerate(hulls):
            slopes[row, len(hull) - 1 :] = slopes[row, 0]
        fastest = np.array([min(metaop.times_s) for metaop in metaops])
        return cls(num_devices, slopes, offsets, fastest)

    def optimum(self, num_ops: Floats) -> Floats:
        """Give C* for remaining operator counts of shape (..., M); 0 where nothing remains.

        Newton's method on f(u) = sum_m n_m(L_m u), u = 1 / C: f is convex, increasing and
        piecewise linear, so it ends in a few exact steps.
        """
        shape = num_ops.shape[:-1]
        rows = num_ops.reshape(-1, num_ops.shape[-1])
        critical_s = np.max(rows * self.fastest_s, axis=-1)
        busy = critical_s > 0
        inverse = 1.0 / np.where(busy, critical_s, 1.0)
        scaled = rows[:, :, None] * self.slopes
        flat, width = scaled.reshape(-1), scaled.shape[-1]
        begins = np.arange(0, flat.size, width)
        for _ in range(40):
            lines = (scaled * inverse[:, None, None] - self.offsets).reshape(-1, width)
            best = begins + lines.argmax(axis=-1)
            used = lines.reshape(-1)[best].reshape(rows.shape).sum(axis=-1)
            excess = used - self.num_devices
            above = (excess > TOLERANCE) & busy
            if not above.any():
                break
            slope = flat[best].reshape(rows.shape).sum(axis=-1)
            inverse = inverse - np.where(above, excess, 0.0) / np.where(above, slope, 1.0)
        return np.where(busy, 1.0 / inverse, 0.0).reshape(shape)

    def allocations(self, num_ops: Floats, optimum_s: float) -> Floats:
        """Give n*_m, shape (M,), for remaining counts (M,) at their optimum C*."""
        if optimum_s <= 0:
            return np.zeros(len(num_ops))
        rates = num_ops / optimum_s
        used: Floats = np.max(self.slopes * rates[:, None] - self.offsets, axis=-1)
        return used

    def prices(self, num_ops: Floats, optimum_s: float) -> Floats:
        """Give dC*/dL_m: by how much C* falls for one operator less of each MetaOp, shape (M,)."""
        critical = num_ops * self.fastest_s
        if optimum_s <= critical.max() * (1 + 1e-9):
            # One MetaOp's fastest time dominates: only its operators shorten C*.
            dominating: Floats = np.where(critical >= optimum_s * (1 - 1e-9), self.fastest_s, 0.0)
            return dominating
        lines = self.slopes * (num_ops / optimum_s)[:, None] - self.offsets
        slope = np.take_along_axis(self.slopes, np.argmax(lines, axis=-1)[:, None], axis=-1)[:, 0]
        priced: Floats = optimum_s * slope / float((slope * num_ops).sum())
        return priced


def optimum(metaops: Sequence[Malleable], num_devices: int) -> float:
    """Give C* of Theorem 1 for one MetaLevel, in seconds."""
    counts = np.array([float(metaop.num_ops) for metaop in metaops])
    return float(Relaxation.of(metaops, num_devices).optimum(counts))


def allocate(
    metaops: Sequence[Malleable], num_devices: int
) -> tuple[float, tuple[Allocation, ...]]:
    """Give C* and, for each MetaOp, the two tuples that represent its n* (bi-point, eq. 10).

    Counts l are real: rounding is the scheduler's, once it knows what ends together.
    """
    relaxation = Relaxation.of(metaops, num_devices)
    counts = np.array([float(metaop.num_ops) for metaop in metaops])
    optimum_s = float(relaxation.optimum(counts))
    shares = relaxation.allocations(counts, optimum_s)
    return optimum_s, tuple(
        _bi_point(metaop, float(share), optimum_s)
        for metaop, share in zip(metaops, shares, strict=True)
    )


def find_inverse_value(metaop: Malleable, time_s: float) -> float:
    """Give T_m^-1(C / L_m) by equation (11): linear in T between valid allocations.

    Below the fastest time it is the largest allocation. Above T_m of the smallest, where the
    lower neighbour is the dummy allocation 0, time per operator grows as the share of time falls.
    """
    allocations, times = metaop.allocations, metaop.times_s
    if time_s <= times[-1]:
        return float(allocations[-1])
    if time_s >= times[0]:
        return allocations[0] * times[0] / time_s
    for (n0, t0), (n1, t1) in pairwise(zip(allocations, times, strict=True)):
        if t1 <= time_s <= t0:
            return ((time_s - t0) * n1 + (t1 - time_s) * n0) / (t1 - t0)
    raise AssertionError("times_s must fall")


def optimum_by_equation_11(
    metaops: Sequence[Malleable], num_devices: int, *, tolerance: float = 1e-9
) -> float:
    """Give C* as Algorithm 2 prints it: bisection over equation (11); never below `optimum`."""
    low = max(metaop.times_s[-1] * metaop.num_ops for metaop in metaops)
    high = sum(metaop.times_s[0] * metaop.num_ops for metaop in metaops) * max(
        1.0, max(metaop.allocations[0] for metaop in metaops)
    )
    while high - low > tolerance * high:
        middle = (low + high) / 2
        used = sum(find_inverse_value(metaop, middle / metaop.num_ops) for metaop in metaops)
        low, high = (low, middle) if used < num_devices else (middle, high)
    return high


def _bi_point(metaop: Malleable, share: float, optimum_s: float) -> Allocation:
    segments = list(pairwise(metaop.hull))
    fitting = (pair for pair in segments if share <= pair[1][0] * (1 + TOLERANCE))
    (n0, r0), (n1, r1) = next(fitting, segments[-1])
    # (10a) l_upper + l_lower = L and (10b) T_upper l_upper + T_lower l_lower = C*, solved for the
    # time spent on each; a dummy lower tuple takes the time that is left.
    upper_s = (metaop.num_ops - r0 * optimum_s) / (r1 - r0)
    upper_ops = min(max(upper_s * r1, 0.0), float(metaop.num_ops))
    return Allocation(
        id=metaop.id,
        num_devices=share,
        upper=Tuple(num_devices=n1, num_ops=upper_ops),
        lower=Tuple(num_devices=n0, num_ops=metaop.num_ops - upper_ops),
    )


@lru_cache(maxsize=4096)
def _hull(
    allocations: tuple[int, ...], times_s: tuple[float, ...]
) -> tuple[tuple[int, float], ...]:
    points: list[tuple[int, float]] = [(0, 0.0)]
    for n, time_s in zip(allocations, times_s, strict=True):
        point = (n, 1.0 / time_s)
        while len(points) > 1 and not _turns_right(points[-2], points[-1], point):
            points.pop()
        points.append(point)
    return tuple(points)


def _turns_right(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    # A point on the line is kept, so that the two tuples are the closest valid allocations.
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0]) * (1 - 1e-12)
