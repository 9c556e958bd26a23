"""The machine-readable result: statements first, then the data of each part.

The same options give the same bytes, but for what is under `wall_clock`.
"""

from dataclasses import dataclass
from typing import Any

import spindle_sim
from spindle_sim.estimate import Estimator
from spindle_sim.reproduce.batches import RECIPES
from spindle_sim.reproduce.evaluate import the_cluster
from spindle_sim.reproduce.experiments import Trial, best, explanation
from spindle_sim.reproduce.rules import Found, Verdict
from spindle_sim.reproduce.run import ALONE, EXPLAIN, Reproduction
from spindle_sim.reproduce.tables import part_data

__all__ = [
    "INCOMPLETE",
    "Document",
    "StatementRow",
    "TrialRow",
    "document",
    "document_schema",
    "statement_rows",
]

INCOMPLETE = (
    "Not all cases were run: maxima and ranges are over those that were, and may not be what the"
    " paper compares."
)
Value = float | list[float] | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A statement that isn't met, under a change that an experiment makes."""

    statement: str
    change: str
    ours: Value
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRow:
    """One statement: the paper's value beside ours; null where it wasn't evaluated.

    Of one that isn't met, `experiment` is the first that meets it, or else the one that comes
    nearest; null where none comes nearer, and `explanation` has them all in words.
    """

    id: str
    section: str
    statement: str
    rule: str
    paper: float | list[float] | bool
    ours: Value
    met: bool | None
    how: str
    experiment: TrialRow | None
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole result; `ours` of a statement about wall time is under `wall_clock` alone."""

    provenance: dict[str, Any]
    met: int
    judged: int
    statements: list[StatementRow]
    batches: dict[str, dict[str, dict[str, Any]]]
    parts: dict[str, dict[str, Any]]
    experiments: list[TrialRow]
    wall_clock: dict[str, Any]


def document(reproduction: Reproduction) -> Document:
    """Give the result as plain data."""
    options, evidence = reproduction.options, reproduction.evidence
    cluster = the_cluster(max(options.gpus))
    return Document(
        provenance={
            "tool": f"spindle-sim {spindle_sim.__version__}",
            "profile": next((one.profile for one in evidence.results if one.profile), "")
            or Estimator(cluster).profile_name,
            "cluster": {
                "name": cluster.name,
                "gpu": cluster.gpu.name,
                "sizes": list(options.gpus),
                "source": cluster.source,
            },
            "parts": list(options.parts),
            "complete": evidence.complete,
            "batch_scale": options.batch_scale,
            "seed": options.seed,
            "not_reproducible": ["wall_clock"],
        },
        met=reproduction.num_met,
        judged=reproduction.num_judged,
        statements=statement_rows(reproduction),
        batches={
            workload: {
                task: {"batch_size": recipe.batch_size, "source": recipe.source}
                for task, recipe in recipes.items()
            }
            for workload, recipes in RECIPES.items()
        },
        parts=part_data(reproduction),
        experiments=[
            _trial(trial) for trial in reproduction.trials if not trial.statement.wall_clock
        ],
        wall_clock=_wall_clock(reproduction),
    )


def document_schema() -> dict[str, Any]:
    """Give the JSON Schema of the document."""
    from pydantic import TypeAdapter

    return TypeAdapter(Document).json_schema()


def statement_rows(reproduction: Reproduction) -> list[StatementRow]:
    """Give all statements, in the paper's order."""
    return [_row(verdict, reproduction) for verdict in reproduction.verdicts]


def _row(verdict: Verdict, reproduction: Reproduction) -> StatementRow:
    statement, found = verdict.statement, verdict.found
    asked = EXPLAIN in reproduction.options.parts
    text = explanation(verdict, reproduction.trials)
    if found is None:
        text = "not evaluated: a system, a cluster size or a part that it needs wasn't run"
    elif statement.wall_clock and text:
        text = f"planned again by itself ({ALONE}): see wall_clock"
    elif verdict.met is False and not text:
        text = "no experiment applies" if asked else ""
    tried = best(verdict, reproduction.trials)
    hidden = statement.wall_clock or found is None
    return StatementRow(
        id=statement.id,
        section=statement.section,
        statement=statement.text,
        rule=statement.rule.value,
        paper=_paper(statement.paper),
        ours=None if hidden or found is None else _ours(found),
        met=verdict.met,
        how="" if found is None else found.how,
        experiment=None if tried is None or statement.wall_clock else _trial(tried),
        explanation=text,
    )


def _trial(trial: Trial) -> TrialRow:
    return TrialRow(
        statement=trial.statement.id,
        change=trial.change,
        ours=_ours(trial.found),
        met=trial.met,
    )


def _paper(values: tuple[float, ...]) -> float | list[float] | bool:
    if not values:
        return True
    return values[0] if len(values) == 1 else list(values)


def _ours(found: Found) -> Value:
    if found.holds is not None:
        return found.holds
    return found.values[0] if len(found.values) == 1 else list(found.values)


def _wall_clock(reproduction: Reproduction) -> dict[str, Any]:
    return {
        "statements": {
            verdict.statement.id: _ours(verdict.found)
            for verdict in reproduction.verdicts
            if verdict.statement.wall_clock and verdict.found is not None
        },
        "experiments": {
            trial.statement.id: {trial.change: _ours(trial.found), "case": trial.found.how}
            for trial in reproduction.trials
            if trial.statement.wall_clock
        },
        "planning_s": {
            result.case.name: {one.strategy: one.planning_s for one in result.outcomes}
            for result in reproduction.evidence.results
            if not result.case.change.name
        },
    }
