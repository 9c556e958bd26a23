"""Candidate sets of a stage (Alg. 1, lines 3-4): which MetaOps run side by side, on what share.

`Propose_Candidate_Set` and `Extend_Resources_If_Needed` are one step here: MetaOps climb from one
valid allocation to the next while devices are free, the one first whose step shortens the remaining
optimum most for each device it takes. A step is worth price * rate gained, the price of an operator
being dC*/dL_m; so a full candidate set of bi-point tuples loses nothing against C*, and what would
be left idle extends the MetaOps whose remaining time weighs most.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spindle_sim.planner.allocate import Malleable, Relaxation
from spindle_sim.planner.moves import Moves

__all__ = ["Candidate", "LevelProblem", "propose"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps from one allocation on a MetaOp's hull to the next, of all MetaOps of a level."""

    metaop: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]  # the allocation it leads to
    rate_per_device: Floats

    @classmethod
    def of(cls, metaops: Sequence[Malleable]) -> "Steps":
        """List the steps."""
        rows = [
            (m, n1, (r1 - r0) / (n1 - n0))
            for m, metaop in enumerate(metaops)
            for (n0, r0), (n1, r1) in pairwise(metaop.hull)
        ]
        owner, target, rate = zip(*rows, strict=True)
        return cls(np.array(owner), np.array(target), np.array(rate))


Candidate = tuple[int, ...]  # devices of each MetaOp of the level, 0 where it doesn't run


@dataclass(frozen=True, slots=True)
class LevelProblem:
    """The MetaOps of one MetaLevel and what every step of the search looks up."""

    metaops: tuple[Malleable, ...]
    num_devices: int
    relaxation: Relaxation = field(repr=False)
    steps: Steps = field(repr=False)
    times_s: tuple[dict[int, float], ...] = field(repr=False)  # by allocation
    moves: tuple[Moves, ...]  # of each MetaOp's data to another device group; none: free
    home: tuple[int, ...]  # devices that hold a MetaOp's input, 0 where it has none

    @classmethod
    def of(
        cls,
        metaops: Sequence[Malleable],
        num_devices: int,
        *,
        moves: Sequence[Moves] = (),
        home: Sequence[int] | None = None,
    ) -> "LevelProblem":
        """Prepare the level."""
        return cls(
            tuple(metaops),
            num_devices,
            Relaxation.of(metaops, num_devices),
            Steps.of(metaops),
            tuple(dict(zip(m.allocations, m.times_s, strict=True)) for m in metaops),
            tuple(moves),
            tuple(home or (0,) * len(metaops)),
        )

    def rates(self, candidate: Candidate) -> list[float]:
        """Give operators per second of each MetaOp."""
        times = zip(self.times_s, candidate, strict=True)
        return [1.0 / by_n[n] if n else 0.0 for by_n, n in times]


def propose(
    problem: LevelProblem,
    remaining: Floats,
    running: Candidate,
    *,
    rng: np.random.Generator,
    num_perturbed: int,
) -> list[Candidate]:
    """Give distinct candidate sets for the next stage, the most promising ones first.

    `remaining` are operators left (real, shape (M,)), `running` the devices of the stage before.
    """
    optimum_s = float(problem.relaxation.optimum(remaining))
    prices = problem.relaxation.prices(remaining, optimum_s)
    left = remaining.tolist()
    alive = [m for m, ops in enumerate(left) if ops > 0]
    # Where one MetaOp dominates, all others have price 0: they still have to be done, so each
    # keeps a price that falls with what remains of it.
    floor = 1e-3 * float(prices.max()) if alive else 0.0
    prices = np.maximum(prices, floor)
    remaining_s = [ops * m.times_s[0] for ops, m in zip(left, problem.metaops, strict=True)]
    noise = np.exp(rng.normal(0.0, 0.3, (num_perturbed, len(left))))
    # The plain prices, the perturbed ones, and those that weigh what takes longest.
    by_weight = prices * np.array(_weights(remaining_s, alive))
    plain, *others = _rankings(problem, np.vstack([prices, prices * noise, by_weight]))
    kept = tuple(n if ops > 0 else 0 for n, ops in zip(running, left, strict=True))
    idle = (0,) * len(left)
    by_time = sorted(alive, key=lambda m: -remaining_s[m])
    subsets = [by_time[:count] for count in (1, 2, 3, 4, 6) if count < len(alive)]
    subsets += [[m] for m in by_time[1:4]]
    found = [_climb(problem, plain, alive, kept), _climb(problem, plain, alive, idle)]
    found += [_climb(problem, plain, subset, idle) for subset in subsets]
    found += [_climb(problem, ranking, alive, idle) for ranking in others]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Prices of operators by MetaOp, and the steps (MetaOp, target) in the order of their worth."""

    prices: list[float]
    steps: list[tuple[int, int]]


def _rankings(problem: LevelProblem, prices: Floats) -> list[_Ranking]:
    """Rank the steps under each row of prices."""
    steps = problem.steps
    order = np.argsort(-prices[:, steps.metaop] * steps.rate_per_device, axis=1, kind="stable")
    pairs = list(zip(steps.metaop.tolist(), steps.target.tolist(), strict=True))
    return [
        _Ranking(row, [pairs[step] for step in ranked])
        for row, ranked in zip(prices.tolist(), order.tolist(), strict=True)
    ]


def _climb(
    problem: LevelProblem, ranking: _Ranking, members: Iterable[int], start: Candidate
) -> Candidate:
    chosen = list(start)
    free = problem.num_devices - sum(chosen)
    allowed = set(members)
    for m, n in ranking.steps:
        if chosen[m] < n <= chosen[m] + free and m in allowed:
            free -= n - chosen[m]
            chosen[m] = n
            if not free:
                return tuple(chosen)
    return _extend(problem, ranking.prices, chosen, allowed)


def _extend(
    problem: LevelProblem, prices: Sequence[float], chosen: list[int], allowed: set[int]
) -> Candidate:
    """Give what is left idle to valid allocations that the hull's steps pass over."""
    free = problem.num_devices - sum(chosen)
    members = sorted(allowed)
    while free:
        best, best_gain, best_n = -1, 0.0, 0
        for m in members:
            times, now = problem.times_s[m], chosen[m]
            for n, time_s in times.items():
                if now < n <= now + free:
                    gain = prices[m] * (1.0 / time_s - (1.0 / times[now] if now else 0.0))
                    if gain > best_gain * (1 + 1e-12):
                        best, best_gain, best_n = m, gain, n
        if best < 0:
            break
        free -= best_n - chosen[best]
        chosen[best] = best_n
    return tuple(chosen)


def _weights(remaining_s: Sequence[float], alive: Sequence[int]) -> list[float]:
    # Longest remaining time first: what is left for the end is then short and easy to align.
    weights = [1.0] * len(remaining_s)
    longest = max(remaining_s[m] for m in alive)
    for m in alive:
        weights[m] = 0.25 + remaining_s[m] / longest
    return weights
