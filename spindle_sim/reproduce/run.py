"""The evaluation as a whole: which parts, in how many processes, and what came of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from spindle_sim.reproduce.cases import ALL_GPUS, STATED, Case, merged, part_cases
from spindle_sim.reproduce.curves import study_curves
from spindle_sim.reproduce.evaluate import evaluate_case, planning_time_s
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.experiments import (
    KEEPING,
    Trial,
    changed_cases,
    changed_curves,
    trials,
    with_changes,
)
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.rules import Found, Verdict, is_met, judge
from spindle_sim.reproduce.statements import STATEMENTS
from spindle_sim.reproduce.statements.components import planning_times
from spindle_sim.whatif import in_processes

__all__ = [
    "ALL_PARTS",
    "ALONE",
    "EXPLAIN",
    "PARTS",
    "Begin",
    "Options",
    "Reproduction",
    "cases_of",
    "reproduce",
]

PARTS: dict[str, str] = {
    "fig4": "scaling curves, and the fit's error on points left out (3.2)",
    "fig8": "iteration times of all systems (5.2)",
    "fig9": "case study: utilization over time, of devices, of MetaOps (5.3)",
    "fig10": "where the time goes (5.4)",
    "fig11": "distance to the optimum, planning time (5.5.1)",
    "placement": "Spindle's placement against a sequential one (5.5.2)",
    "fig13": "task sets that change (5.6)",
    "fig14": "single tasks (appendix C)",
    "fig15": "memory of each device (appendix D)",
    "batches": "the speed-ups with batches halved and doubled",
    "explain": "experiments on the statements that aren't met",
}
EXPLAIN = "explain"
ALONE = "slowest case planned alone"
_REPEATED = 3  # times; the shortest counts
# Called with what is run and how many; gives what is called after each, with its name.
Begin = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]
ALL_PARTS = tuple(PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is reproduced, on clusters of which sizes."""

    parts: tuple[str, ...] = ALL_PARTS
    gpus: tuple[int, ...] = ALL_GPUS
    batch_scale: float = 1.0
    seed: int = 0

    @property
    def judged_parts(self) -> tuple[str, ...]:
        """The parts whose cases are run; experiments need the results that they set out from."""
        wanted = ALL_PARTS if self.parts == (EXPLAIN,) else self.parts
        return tuple(name for name in ALL_PARTS if name in wanted and name != EXPLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Everything that came of it."""

    options: Options
    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    trials: tuple[Trial, ...] = ()

    @property
    def num_met(self) -> int:
        """Statements that are met."""
        return sum(verdict.met is True for verdict in self.verdicts)

    @property
    def num_judged(self) -> int:
        """Statements that could be evaluated."""
        return sum(verdict.met is not None for verdict in self.verdicts)


def cases_of(options: Options) -> tuple[Case, ...]:
    """Give all cases that the options ask for, each once; without those of the experiments."""
    cases = merged(
        case
        for part in options.judged_parts
        for case in part_cases(part, options.gpus, options.batch_scale)
    )
    if EXPLAIN not in options.parts:
        return cases
    return tuple(
        replace(case, also=KEEPING)
        if case.batch_scale == options.batch_scale and case.gpus in STATED[case.workload]
        else case
        for case in cases
    )


def reproduce(options: Options, workers: int, begin: Begin) -> Reproduction:
    """Run all cases in `workers` processes and judge the statements.

    The same options give the same results, but for the planning times: they are wall times.
    """
    work = partial(evaluate_case, seed=options.seed)

    def run(cases: Sequence[Case], what: str) -> tuple[CaseResult, ...]:
        with begin(what, len(cases)) as done:
            found = in_processes(work, cases, workers, lambda case: done(case.name))
        return tuple(chain.from_iterable(found))

    results = run(cases_of(options), "cases")
    curves = study_curves(options.batch_scale) if "fig4" in options.judged_parts else None
    evidence = Evidence(results=results, batch_scale=options.batch_scale, curves=curves)
    verdicts = tuple(judge(statement, evidence) for statement in STATEMENTS)
    found: tuple[Trial, ...] = ()
    if EXPLAIN in options.parts:
        more = run(changed_cases(verdicts, evidence), "cases of experiments")
        found = trials(
            verdicts,
            with_changes(evidence, more),
            curves=changed_curves(verdicts, options.batch_scale),
        )
        found += _planned_alone(verdicts, evidence, options.seed, begin)
    return Reproduction(options=options, evidence=evidence, verdicts=verdicts, trials=found)


def _planned_alone(
    verdicts: Sequence[Verdict], evidence: Evidence, seed: int, begin: Begin
) -> tuple[Trial, ...]:
    """Plan the case that took longest again, while nothing else of this runs."""
    unmet = [one for one in verdicts if one.met is False and one.statement.wall_clock]
    times = planning_times(evidence)
    if not unmet or not times:
        return ()
    slowest = max(times, key=lambda case: times[case])
    taken: list[float] = []
    with begin("times the slowest case", _REPEATED) as done:
        for _ in range(_REPEATED):
            taken.append(planning_time_s(slowest, seed))
            done(slowest.name)
    taken_s = min(taken)
    return tuple(
        Trial(
            statement=one.statement,
            change=ALONE,
            found=Found(values=(taken_s,), how=slowest.name),
            met=is_met(one.statement.rule, one.statement.paper, Found(values=(taken_s,))),
        )
        for one in unmet
    )
