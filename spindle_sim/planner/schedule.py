"""The stage scheduler (section 3.4): Alg. 1 for one MetaLevel, with lookahead.

A stage is a candidate set (`propose`) run for a time span (`_spans`) that lets members end
together. Alg. 1 takes the first one it thinks of; here the few best partial schedules are kept,
judged by the time spent so far plus the Theorem 1 optimum of what remains, so that a stage is
taken when it loses least against C*. Operators are whole: a MetaOp that goes on with the same
allocation in the next stage carries on within an operator, one that stops or changes completes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor

import numpy as np
import numpy.typing as npt

from spindle_sim.planner.allocate import Malleable
from spindle_sim.planner.lanes import Run
from spindle_sim.planner.moves import Moves
from spindle_sim.planner.propose import Candidate, LevelProblem, propose

__all__ = ["SearchEffort", "schedule_level"]

Floats = npt.NDArray[np.float64]

HALF = 0.5
NOTHING = 1e-7  # of an operator: what rounding leaves of none


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """How many partial schedules are kept and how many alternatives each tries."""

    num_buckets: int = 24
    width: int = 2
    num_perturbed: int = 2
    num_spans: int = 5
    num_results: int = 12


@dataclass(slots=True)
class _Partial:
    elapsed_s: float
    bound_s: float
    remaining: Floats
    running: Candidate
    home: Candidate  # devices that each MetaOp's data lies on
    stages: tuple[tuple[Candidate, tuple[float, ...]], ...]  # devices, operators done (real)


@dataclass(slots=True)
class _Child:
    """A stage more than its base has; made a partial schedule only if it is kept."""

    base: _Partial
    candidate: Candidate
    elapsed_s: float
    left: Floats
    done: Floats  # in the stage
    bound_s: float = 0.0
    finished: bool = False

    @property
    def partial(self) -> _Partial:
        """Give the schedule with the stage."""
        home = tuple(n or self.base.home[m] for m, n in enumerate(self.candidate))
        stages = (*self.base.stages, (self.candidate, tuple(self.done.tolist())))
        return _Partial(self.elapsed_s, self.bound_s, self.left, self.candidate, home, stages)


def schedule_level(
    metaops: Sequence[Malleable],
    num_devices: int,
    *,
    moves: Sequence[Moves] = (),
    home: Sequence[int] | None = None,
    effort: SearchEffort | None = None,
    rng: np.random.Generator | None = None,
) -> list[tuple[Run, ...]]:
    """Give the best schedules found for one MetaLevel, the most promising first, then the plainest.

    In each, every operator of every MetaOp is in exactly one run; stages count from 0. Beginning
    on another number of devices than `home` (which hold the input), or changing it, costs
    what `moves` says.
    """
    effort = effort or SearchEffort()
    rng = rng or np.random.default_rng(0)
    problem = LevelProblem.of(metaops, num_devices, moves=moves, home=home)
    counts = np.array([float(metaop.num_ops) for metaop in metaops])
    optimum_s = float(problem.relaxation.optimum(counts))
    idle: Candidate = (0,) * len(metaops)
    start = _Partial(0.0, optimum_s, counts, idle, problem.home, ())
    buckets: list[list[_Child]] = [[] for _ in range(effort.num_buckets)]
    done = _place(buckets, _expand(problem, start, effort, rng), 0)
    for index in range(effort.num_buckets):
        # A stage may be too short to leave its bucket: the bucket is worked off until it is empty.
        while buckets[index]:
            kept = sorted(buckets[index], key=lambda child: child.bound_s)[: effort.width]
            buckets[index] = []
            for child in kept:
                done += _place(buckets, _expand(problem, child.partial, effort, rng), index)
    done.sort(key=lambda child: child.bound_s)
    best = done[: 2 * effort.num_results]
    schedules = dict.fromkeys(_whole_runs(problem, child.partial) for child in best)
    return [*list(schedules)[: effort.num_results - 1], _one_by_one(metaops)]


def _one_by_one(metaops: Sequence[Malleable]) -> tuple[Run, ...]:
    """Give the plainest schedule: candidate sets of one MetaOp, on its fastest allocation."""
    longest = sorted(metaops, key=lambda metaop: -metaop.num_ops * metaop.times_s[-1])
    return tuple(
        Run(id=m.id, stage=stage, num_devices=m.allocations[-1], num_ops=m.num_ops)
        for stage, m in enumerate(longest)
    )


def _place(buckets: list[list[_Child]], children: list[_Child], index: int) -> list[_Child]:
    """Put unfinished children where their progress belongs; give the finished ones."""
    finished = []
    for child in children:
        if child.finished:
            finished.append(child)
            continue
        place = int(child.elapsed_s / child.bound_s * len(buckets))
        buckets[max(index, min(place, len(buckets) - 1))].append(child)
    return finished


def _expand(
    problem: LevelProblem, partial: _Partial, effort: SearchEffort, rng: np.random.Generator
) -> list[_Child]:
    candidates = propose(
        problem,
        partial.remaining,
        partial.running,
        rng=rng,
        num_perturbed=effort.num_perturbed,
    )
    children: list[_Child] = []
    for candidate in candidates:
        base = _change_over(problem, partial, candidate)
        if not base.remaining.any():  # completing what was in hand completed everything
            nothing = np.zeros_like(base.remaining)
            children.append(_Child(base, candidate, base.elapsed_s, nothing, nothing))
            continue
        pace = problem.rates(candidate)
        rates = np.array(pace)
        children += [
            _Child(base, candidate, base.elapsed_s + span_s, base.remaining, rates * span_s)
            for span_s in _spans(base.remaining.tolist(), pace, effort.num_spans)
        ]
    if not children:
        return children
    before = np.array([child.left for child in children])
    done_ops = np.minimum(before, np.array([child.done for child in children]))
    done_ops = np.where(before - done_ops < NOTHING, before, done_ops)
    left = before - done_ops
    ahead = problem.relaxation.optimum(left).tolist()
    pending = left.max(axis=1).tolist()
    for i, child in enumerate(children):
        child.left, child.done = left[i], done_ops[i]
        child.bound_s = child.elapsed_s + ahead[i]
        child.finished = pending[i] <= 0
    return children


def _change_over(problem: LevelProblem, partial: _Partial, candidate: Candidate) -> _Partial:
    """Round the operators of MetaOps that stop or change, and charge what that costs.

    An operator at least half done is completed, and the next stage waits for the slowest; one less
    than half done isn't begun. Members that carry on use the wait. Moving data is charged by the
    share of devices that wait for it.
    """
    rounded, delay_s = _rounded(problem, partial, candidate)
    moved_s = sum(
        problem.moves[m].seconds(partial.home[m], n) * n / problem.num_devices
        for m, n in enumerate(candidate if problem.moves else ())
        if n and n != partial.home[m] and partial.remaining[m] > 0
    )
    if not rounded and not moved_s:
        return partial
    remaining = partial.remaining.copy()
    done = list(partial.stages[-1][1]) if partial.stages else []
    for m, count in rounded.items():
        done[m] += float(remaining[m]) - count
        remaining[m] = count
    if delay_s:
        for m, n in enumerate(candidate):
            if n and n == partial.running[m]:
                more = min(float(remaining[m]), delay_s / problem.times_s[m][n])
                done[m] += more
                remaining[m] -= more
    stages = partial.stages
    if stages:
        stages = (*stages[:-1], (stages[-1][0], tuple(done)))
    elapsed_s = partial.elapsed_s + delay_s + moved_s
    return replace(partial, elapsed_s=elapsed_s, remaining=remaining, stages=stages)


def _rounded(
    problem: LevelProblem, partial: _Partial, candidate: Candidate
) -> tuple[dict[int, float], float]:
    """Give whole remaining counts of the MetaOps that stop within an operator, and the wait."""
    rounded: dict[int, float] = {}
    delay_s = 0.0
    for m, (n, left) in enumerate(zip(partial.running, partial.remaining.tolist(), strict=True)):
        fraction = left - floor(left + NOTHING)
        if n == 0 or n == candidate[m] or fraction <= NOTHING:
            continue
        if fraction <= HALF:  # so much is left of the operator in hand
            delay_s = max(delay_s, fraction * problem.times_s[m][n])
            rounded[m] = float(floor(left))
        else:
            rounded[m] = float(ceil(left))
    return rounded, delay_s


def _spans(remaining: Sequence[float], rates: Sequence[float], num_spans: int) -> list[float]:
    """Give time spans worth trying (Alg. 1, line 5): to the end of a member, or of an operator."""
    pairs = zip(remaining, rates, strict=True)
    members = [(left / rate, left, rate) for left, rate in pairs if rate > 0 and left > 0]
    if not members:
        return []
    ends = sorted(end for end, _, _ in members)
    spans = ends[: max(2, num_spans // 2)]
    # Operator ends of the longest member, spread over the time until the first member is through.
    _, left, rate = max(members)
    first = left - floor(left + NOTHING) or 1.0
    for share in (0.25, 0.5, 0.8)[: num_spans - len(spans)]:
        steps = max(0.0, floor(share * ends[0] * rate - first))
        spans.append((first + steps) / rate)
    unique = sorted({span for span in spans if span > 0})
    return [span for i, span in enumerate(unique) if i == 0 or span > unique[i - 1] * (1 + 1e-9)]


def _whole_runs(problem: LevelProblem, best: _Partial) -> tuple[Run, ...]:
    """Turn real operator counts of consecutive stages into whole ones with the same sums.

    Within a run of stages of equal allocation the cumulative count is rounded, so that every
    operator is in the stage in which most of it is done.
    """
    runs: list[Run] = []
    for m, metaop in enumerate(problem.metaops):
        given = 0
        cumulative = 0.0
        for num_devices, stages in groupby(
            range(len(best.stages)), key=lambda stage: best.stages[stage][0][m]
        ):
            if not num_devices:
                continue
            ends = []
            for stage in stages:
                cumulative += best.stages[stage][1][m]
                ends.append((stage, cumulative))
            total = round(cumulative)
            for stage, end in ends:
                whole = total if stage == ends[-1][0] else min(total, int(end + HALF))
                if whole > given:
                    runs.append(
                        Run(
                            id=metaop.id,
                            stage=stage,
                            num_devices=num_devices,
                            num_ops=whole - given,
                        )
                    )
                    given = whole
        assert given == metaop.num_ops, f"{metaop.id}: {given} of {metaop.num_ops} scheduled"
    return tuple(sorted(runs, key=lambda run: (run.stage, -run.num_devices)))
