"""Experiments on statements that aren't met: what of the model or the inputs would have to differ.

Every experiment changes one thing (two at most), plans and simulates all cases again, and judges
all statements by the same rules. Nothing here changes the figures of the other parts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from spindle_sim.reproduce.cases import ALL_GPUS, STATED, Case, Change, merged, part_cases
from spindle_sim.reproduce.curves import CurveStudy, study_curves
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.rules import Found, Rule, Statement, Verdict, is_met

__all__ = ["CHANGES", "Trial", "changed_cases", "changed_curves", "explanation", "trials"]

CHANGES: tuple[Change, ...] = (
    Change(name="batches / 2", batch=0.5),
    Change(name="batches / 4", batch=0.25),
    Change(name="batches / 8", batch=0.125),
    Change(name="kernel launch x 4", launch=4.0),
    Change(name="kernel launch / 4", launch=0.25),
    Change(name="batches / 4, kernel launch x 4", batch=0.25, launch=4.0),
    Change(name="network cards x 1/4", nic=0.25),
    Change(name="eight cards a node", nics_per_node=8),
    Change(name="free communication", free_network=True),
    Change(name="no synchronization overlapped", overlap_sync=False),
    Change(name="memory x 4", memory=4.0),
)
_CURVES = "3.2"
_PART_OF = {  # whose cases a section's statements are judged over
    "5.2": "fig8",
    "5.3": "fig9",
    "5.4": "fig10",
    "5.5.1": "fig11",
    "5.5.2": "placement",
    "5.6": "fig13",
    "appendix C": "fig14",
    "appendix D": "fig15",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One statement under one change."""

    statement: Statement
    change: str
    found: Found
    met: bool


def changed_cases(cases: Iterable[Case], sections: Iterable[str]) -> tuple[Case, ...]:
    """Give, of the cases that were run, those that statements of these sections are judged over.

    Each is there under every change.
    """
    run = {case.key: case for case in cases}
    scales = {case.batch_scale for case in run.values()}
    parts = dict.fromkeys(_PART_OF[name] for name in sections if name in _PART_OF)
    wanted = [
        case
        for part in parts
        for scale in scales
        for case in part_cases(part, ALL_GPUS, scale)
        if case.key in run and case.gpus in STATED[case.workload]
    ]
    return merged(replace(case, change=change) for case in wanted for change in CHANGES)


def changed_curves(verdicts: Iterable[Verdict], batch_scale: float) -> dict[str, CurveStudy]:
    """Give, where a statement on scaling curves isn't met, the curves under each change of batches.

    What else a change changes doesn't reach the curves' study.
    """
    if not any(one.met is False and one.statement.section == _CURVES for one in verdicts):
        return {}
    return {
        change.name: study_curves(batch_scale * change.batch)
        for change in CHANGES
        if change == Change(name=change.name, batch=change.batch)
    }


def trials(
    verdicts: tuple[Verdict, ...],
    evidence: Evidence,
    changes: tuple[Change, ...] = CHANGES,
    curves: Mapping[str, CurveStudy] = MappingProxyType({}),
) -> tuple[Trial, ...]:
    """Judge every statement that isn't met again, under each change."""
    found = []
    for verdict in verdicts:
        if verdict.met is not False or verdict.statement.wall_clock:
            continue
        for change in changes:
            changed = replace(evidence, change=change.name, curves=curves.get(change.name))
            value = verdict.statement.find(changed)
            if value is not None:
                statement = verdict.statement
                met = is_met(statement.rule, statement.paper, value)
                found.append(Trial(statement=statement, change=change.name, found=value, met=met))
    return tuple(found)


def explanation(verdict: Verdict, found: tuple[Trial, ...]) -> str:
    """Say under which changes a statement is met, and which one brings it nearest otherwise."""
    mine = [trial for trial in found if trial.statement.id == verdict.statement.id]
    if not mine or verdict.found is None:
        return ""
    met = [trial for trial in mine if trial.met]
    if met:
        return "met under " + "; ".join(f"{one.change}: {_shown(one.found)}" for one in met)
    if verdict.statement.rule is Rule.HOLDS:
        return f"under none of {len(mine)} changes"
    nearest = min(mine, key=lambda trial: _distance(verdict.statement, trial.found))
    before = _distance(verdict.statement, verdict.found)
    if _distance(verdict.statement, nearest.found) >= before:
        return f"none of {len(mine)} changes brings it nearer"
    return f"under none of {len(mine)} changes; nearest under {nearest.change}: " + _shown(
        nearest.found
    )


def _shown(found: Found) -> str:
    if found.holds is not None:
        return "holds" if found.holds else "doesn't hold"
    return " to ".join(f"{value:.3g}" for value in found.values)


def _distance(statement: Statement, found: Found) -> float:
    """Give how far ours is from the paper's, relative; of a bound, how far beyond it."""
    paper, values = statement.paper, found.values
    if statement.rule is Rule.AT_MOST:
        return max(0.0, max(values) / paper[0] - 1)
    if statement.rule is Rule.AT_LEAST:
        return max(0.0, 1 - min(values) / paper[0])
    return max(abs(ours / stated - 1) for ours, stated in zip(values, paper, strict=True))
