"""All results of a run, looked up by workload, tasks, cluster size and strategy."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from spindle_sim.reproduce.cases import ALL_GPUS, STATED, Case, Change, Tasks, part_cases
from spindle_sim.reproduce.curves import CurveStudy
from spindle_sim.reproduce.outcome import CaseResult, Outcome

__all__ = ["Evidence", "Point", "combined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value of one case."""

    case: Case
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Results of the cases that were run, at one batch scale and under one change."""

    results: tuple[CaseResult, ...]
    batch_scale: float = 1.0
    change: str = ""
    curves: CurveStudy | None = None

    def result(self, workload: str, tasks: Tasks, gpus: int) -> CaseResult | None:
        """Give the result of a case; None where it wasn't run."""
        wanted = (workload, tasks, gpus, self.batch_scale, self.change)
        return next((one for one in self.results if one.case.key == wanted), None)

    def outcome(self, workload: str, tasks: Tasks, gpus: int, strategy: str) -> Outcome | None:
        """Give one strategy's figures in a case; None where there are none."""
        result = self.result(workload, tasks, gpus)
        return None if result is None else result.of(strategy)

    def under(self, change: Change) -> "Evidence":
        """Give the same results under a change; batches of another scale are cases of it."""
        if change.is_batch:
            return replace(self, batch_scale=self.batch_scale * change.batch)
        return replace(self, change=change.name)

    @property
    def complete(self) -> bool:
        """Whether all cases that the paper's text speaks of were run, single tasks aside."""
        wanted = {
            replace(case, change=Change(name=self.change)).key
            for case in part_cases("fig8", ALL_GPUS, self.batch_scale)
            if case.gpus in STATED[case.workload]
        }
        return wanted <= {result.case.key for result in self.results}

    def stated(
        self, workload: str | None = None, counts: Iterable[int] | None = None
    ) -> Iterator[CaseResult]:
        """Give the multi-task cases of the sizes that the paper's text speaks of."""
        allowed = None if counts is None else set(counts)
        for result in self.results:
            case = result.case
            if (
                isinstance(case.tasks, int)
                and (case.batch_scale, case.change.name) == (self.batch_scale, self.change)
                and case.gpus in STATED[case.workload]
                and workload in (None, case.workload)
                and (allowed is None or case.tasks in allowed)
            ):
                yield result

    def singles(self) -> Iterator[CaseResult]:
        """Give the cases of a single task."""
        for result in self.results:
            case = result.case
            if (
                not isinstance(case.tasks, int)
                and (case.batch_scale, case.change.name) == (self.batch_scale, self.change)
                and len(case.tasks) == 1
            ):
                yield result

    def speedups(self, results: Iterable[CaseResult], system: str, over: str) -> tuple[Point, ...]:
        """Give how many times as fast `system` is as `over`, in each case that has both."""
        found = []
        for result in results:
            ours, theirs = result.of(system), result.of(over)
            if ours is not None and theirs is not None:
                value = theirs.iteration_s / ours.iteration_s
                found.append(Point(case=result.case, value=value))
        return tuple(found)


def combined(results: Iterable[CaseResult]) -> tuple[CaseResult, ...]:
    """Give each case once, with the outcomes of all its results; of two alike the first counts."""
    known: dict[tuple[object, ...], CaseResult] = {}
    for result in results:
        first = known.setdefault(result.case.key, result)
        have = {outcome.strategy for outcome in first.outcomes}
        more = tuple(one for one in result.outcomes if one.strategy not in have)
        known[result.case.key] = replace(
            first,
            outcomes=(*first.outcomes, *more),
            sequential=first.sequential or result.sequential,
        )
    return tuple(known.values())
