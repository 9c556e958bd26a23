"""The evaluation as a whole: which parts, in how many processes, and what came of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from spindle_sim.reproduce.cases import ALL_GPUS, Case, merged, part_cases
from spindle_sim.reproduce.curves import study_curves
from spindle_sim.reproduce.evaluate import evaluate_case
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.experiments import Trial, changed_cases, changed_curves, trials
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.rules import Verdict, judge
from spindle_sim.reproduce.statements import STATEMENTS
from spindle_sim.whatif import in_processes

__all__ = [
    "ALL_PARTS",
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
    "explain": "experiments on the statements that aren't met; not part of all",
}
EXPLAIN = "explain"
# Called with what is run and how many; gives what is called after each, with its name.
Begin = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]
ALL_PARTS = tuple(name for name in PARTS if name != EXPLAIN)


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
        return tuple(name for name in ALL_PARTS if name in wanted)


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
    return merged(
        case
        for part in options.judged_parts
        for case in part_cases(part, options.gpus, options.batch_scale)
    )


def reproduce(options: Options, workers: int, begin: Begin) -> Reproduction:
    """Run all cases in `workers` processes and judge the statements.

    The same options give the same results, but for the planning times: they are wall times.
    """
    work = partial(evaluate_case, seed=options.seed)

    def run(cases: Sequence[Case], what: str) -> tuple[CaseResult, ...]:
        with begin(what, len(cases)) as done:
            return in_processes(work, cases, workers, lambda case: done(case.name))

    cases = cases_of(options)
    results = run(cases, "cases")
    curves = study_curves(options.batch_scale) if "fig4" in options.judged_parts else None
    evidence = Evidence(results=results, batch_scale=options.batch_scale, curves=curves)
    verdicts = tuple(judge(statement, evidence) for statement in STATEMENTS)
    found: tuple[Trial, ...] = ()
    if EXPLAIN in options.parts:
        unmet = [one.statement.section for one in verdicts if one.met is False]
        asked = [case for case in cases if case.batch_scale == options.batch_scale]
        more = run(changed_cases(asked, unmet), "cases of experiments")
        found = trials(
            verdicts,
            replace(evidence, results=(*results, *more)),
            curves=changed_curves(verdicts, options.batch_scale),
        )
    return Reproduction(options=options, evidence=evidence, verdicts=verdicts, trials=found)
