"""Experiments on statements that aren't met: what of the model or the inputs would have to differ.

Every experiment changes one thing (two in one of them) and judges by the same rules. It plans anew
only the cases, and only the systems in them, that a statement which isn't met is judged over; where
only the simulation changes the plans stay. Nothing here changes the figures of the other parts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from spindle_sim.reproduce.cases import SYSTEMS, UNCHANGED, Case, Change, merged
from spindle_sim.reproduce.curves import CurveStudy, study_curves
from spindle_sim.reproduce.evidence import Evidence, combined
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.rules import Found, Rule, Statement, Verdict, distance, is_met

__all__ = [
    "CHANGES",
    "KEEPING",
    "Trial",
    "best",
    "changed_cases",
    "changed_curves",
    "explanation",
    "reads",
    "trials",
    "with_changes",
]

CHANGES: tuple[Change, ...] = (
    Change(name="batches / 2", batch=0.5),
    Change(name="batches / 4", batch=0.25),
    Change(name="batches / 8", batch=0.125),
    Change(name="built-in batches", built_in_batches=True),
    Change(name="kernel launch x 4", launch=4.0),
    Change(name="kernel launch / 4", launch=0.25),
    Change(name="batches / 4, kernel launch x 4", batch=0.25, launch=4.0),
    Change(name="network cards x 1/4", nic=0.25),
    Change(name="eight cards a node", nics_per_node=8),
    Change(name="free communication", free_network=True),
    Change(name="no synchronization overlapped", overlap_sync=False),
    Change(name="memory x 4", memory=4.0),
    # 480 px in patches of 14: what OFASys makes of every image unless told otherwise.
    Change(name="OFASys images of 480 px", image_tokens=34 * 34),
    Change(name="sequential plans", sequential_plans=True),
)
# Those under which every plan stays: their cases are simulated right when they are planned.
KEEPING: tuple[Change, ...] = tuple(change for change in CHANGES if change.keeps_plans)
_PLACEMENT = "5.5.2"  # the only section that is about the sequential placement
_CURVES = "3.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One statement under one change."""

    statement: Statement
    change: str
    found: Found
    met: bool


class _Watched(CaseResult):
    """A result that keeps which strategies it was asked for."""

    __slots__ = ("asked",)
    asked: set[str]

    def of(self, strategy: str) -> Outcome | None:
        """Give a strategy's figures, as any result does."""
        self.asked.add(strategy)
        return CaseResult.of(self, strategy)


def reads(statement: Statement, evidence: Evidence) -> tuple[Case, ...]:
    """Give the cases, each with the strategies alone, that a statement is judged over."""
    watched = [_watch(result) for result in evidence.results]
    statement.find(replace(evidence, results=tuple(watched)))
    return tuple(
        replace(
            result.case,
            strategies=tuple(name for name in SYSTEMS if name in result.asked),
            sequential=statement.section == _PLACEMENT,
        )
        for result in watched
        if result.asked
    )


def _watch(result: CaseResult) -> _Watched:
    watched = _Watched(
        case=result.case,
        outcomes=result.outcomes,
        sequential=result.sequential,
        state_bytes=result.state_bytes,
        profile=result.profile,
    )
    object.__setattr__(watched, "asked", set())  # frozen, as every result
    return watched


def changed_cases(
    verdicts: Iterable[Verdict], evidence: Evidence, changes: Iterable[Change] = CHANGES
) -> tuple[Case, ...]:
    """Give what has to be planned anew for the statements that aren't met, under every change."""
    allowed = tuple(change for change in changes if not change.keeps_plans)
    wanted = [
        _under(case, change)
        for verdict in _unmet(verdicts)
        for case in reads(verdict.statement, evidence)
        for change in allowed
        if change.concerns(case) and (case.sequential or not change.sequential_plans)
    ]
    return merged(
        remaining
        for case in merged(wanted)
        if (remaining := _without(case, evidence)).strategies or remaining.sequential
    )


def _under(case: Case, change: Change) -> Case:
    if change.is_batch:
        return replace(case, batch_scale=case.batch_scale * change.batch)
    # A schedule of the sequential placement's own leaves the systems what they were.
    strategies = () if change.sequential_plans else case.strategies
    return replace(case, change=change, strategies=strategies)


def _without(case: Case, evidence: Evidence) -> Case:
    """Leave out what has been run."""
    known = next((one for one in evidence.results if one.case.key == case.key), None)
    if known is None:
        return case
    have = {outcome.strategy for outcome in known.outcomes}
    left = tuple(name for name in case.strategies if name not in have)
    sequential = case.sequential and known.sequential is None
    if sequential and not case.change.sequential_plans:
        left = tuple(name for name in SYSTEMS if name in {*left, "spindle"})
    return replace(case, strategies=left, sequential=sequential)


def with_changes(
    evidence: Evidence, more: Iterable[CaseResult], changes: Iterable[Change] = CHANGES
) -> Evidence:
    """Add the results of experiments; a case that a change doesn't concern stays what it was."""
    kept = []
    for result in evidence.results:
        if result.case.change != UNCHANGED or result.case.batch_scale != evidence.batch_scale:
            continue
        for change in changes:
            case = replace(result.case, change=change)
            if not change.concerns(result.case):
                kept.append(replace(result, case=case))
            elif change.sequential_plans:
                kept.append(replace(result, case=case, sequential=None))
    return replace(evidence, results=combined((*evidence.results, *more, *kept)))


def changed_curves(
    verdicts: Iterable[Verdict], batch_scale: float, changes: Iterable[Change] = CHANGES
) -> dict[str, CurveStudy]:
    """Give, where a statement on scaling curves isn't met, the curves that a change reaches."""
    if not any(verdict.statement.section == _CURVES for verdict in _unmet(verdicts)):
        return {}
    return {
        change.name: study_curves(batch_scale, change)
        for change in changes
        if change.same_but(batch=1.0, built_in_batches=False, launch=1.0)
    }


def trials(
    verdicts: tuple[Verdict, ...],
    evidence: Evidence,
    changes: tuple[Change, ...] = CHANGES,
    curves: Mapping[str, CurveStudy] = MappingProxyType({}),
) -> tuple[Trial, ...]:
    """Judge every statement that isn't met again, under each change that it can depend on.

    `evidence` has the results of the experiments (`with_changes`).
    """
    found = []
    for verdict in _unmet(verdicts):
        statement = verdict.statement
        cases = reads(statement, evidence)
        for change in changes:
            if not _reaches(change, cases) and change.name not in curves:
                continue
            changed = replace(evidence.under(change), curves=curves.get(change.name))
            value = statement.find(changed)
            if value is not None:
                met = is_met(statement.rule, statement.paper, value)
                found.append(Trial(statement=statement, change=change.name, found=value, met=met))
    return tuple(found)


def _reaches(change: Change, cases: Iterable[Case]) -> bool:
    return any(
        change.concerns(case) and (case.sequential or not change.sequential_plans) for case in cases
    )


def _unmet(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [one for one in verdicts if one.met is False and not one.statement.wall_clock]


def best(verdict: Verdict, found: Iterable[Trial]) -> Trial | None:
    """Give the first trial that meets a statement, or else the one that comes nearest."""
    mine = [trial for trial in found if trial.statement.id == verdict.statement.id]
    met = next((trial for trial in mine if trial.met), None)
    if met or not mine or verdict.found is None or verdict.statement.rule is Rule.HOLDS:
        return met
    nearest = min(mine, key=lambda trial: distance(verdict.statement, trial.found))
    before = distance(verdict.statement, verdict.found)
    return nearest if distance(verdict.statement, nearest.found) < before else None


def explanation(verdict: Verdict, found: tuple[Trial, ...]) -> str:
    """Say under which changes a statement is met, and which one brings it nearest otherwise."""
    mine = [trial for trial in found if trial.statement.id == verdict.statement.id]
    if not mine:
        return ""
    met = [trial for trial in mine if trial.met]
    if met:
        return "met under " + "; ".join(f"{one.change}: {_shown(one.found)}" for one in met)
    if verdict.statement.rule is Rule.HOLDS:
        return f"under none of {len(mine)} changes"
    nearest = best(verdict, mine)
    if nearest is None:
        return f"none of {len(mine)} changes brings it nearer"
    return f"under none of {len(mine)} changes; nearest under {nearest.change}: " + _shown(
        nearest.found
    )


def _shown(found: Found) -> str:
    if found.holds is not None:
        return "holds" if found.holds else "doesn't hold"
    return " to ".join(f"{value:.3g}" for value in found.values)
