"""A statement of the paper beside ours, and the rule by which it is met.

The rules, one for each kind of statement; shares and factors are treated alike:

ratio     one stated number r: ours lies in [0.9 r, 1.1 r]. "Up to r" is such a number: the paper's
          largest value against our largest value over the same cases;
range     two stated ends: our smallest and our largest value each lie within 10 % of theirs;
typically two stated ends between which most cases lie ("typically", "usually"): the middle half of
          ours lies between them, each end widened by 10 %;
at most   a bound: no value of ours is above it;
at least  a bound: no value of ours is below it;
holds     a comparison without a number: it holds or it doesn't, as `how` says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_sim.reproduce.evidence import Evidence

__all__ = [
    "TOLERANCE",
    "Found",
    "Rule",
    "Statement",
    "Verdict",
    "distance",
    "is_met",
    "judge",
    "middle_half",
]

TOLERANCE = 0.1  # of the stated number
_ROUNDING = 1e-9


class Rule(StrEnum):
    """The kinds of statements."""

    RATIO = "ratio"
    RANGE = "range"
    TYPICALLY = "typically"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    HOLDS = "holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What we have for a statement: one value, two ends, or whether a comparison holds."""

    values: tuple[float, ...] = ()
    holds: bool | None = None
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of the paper; `find` gives None where its cases or systems weren't run."""

    id: str
    section: str
    text: str
    rule: Rule
    find: "Callable[[Evidence], Found | None]"
    paper: tuple[float, ...] = ()
    wall_clock: bool = False  # our value is a wall time: it differs from run to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A statement with ours; `met` is None where it wasn't evaluated."""

    statement: Statement
    found: Found | None
    met: bool | None


def judge(statement: Statement, evidence: "Evidence") -> Verdict:
    """Set ours beside the paper's."""
    found = statement.find(evidence)
    if found is None:
        return Verdict(statement=statement, found=None, met=None)
    return Verdict(
        statement=statement, found=found, met=is_met(statement.rule, statement.paper, found)
    )


def is_met(rule: Rule, paper: tuple[float, ...], found: Found) -> bool:
    """Apply a rule."""
    if rule is Rule.HOLDS:
        assert found.holds is not None, "a comparison says whether it holds"
        return found.holds
    assert found.values, f"a statement of the kind {rule.value!r} has values"
    if rule is Rule.AT_MOST:
        return max(found.values) <= paper[0] * (1 + _ROUNDING)
    if rule is Rule.AT_LEAST:
        return min(found.values) >= paper[0] * (1 - _ROUNDING)
    assert len(found.values) == len(paper), "as many values as are stated"
    if rule is Rule.TYPICALLY:
        return _beyond(paper, found.values) <= TOLERANCE * (1 + _ROUNDING)
    return all(_near(ours, stated) for ours, stated in zip(found.values, paper, strict=True))


def _near(ours: float, stated: float) -> bool:
    return abs(ours - stated) <= TOLERANCE * abs(stated) * (1 + _ROUNDING)


def distance(statement: Statement, found: Found) -> float:
    """Give how far ours is from the paper's, relative; of a bound, how far beyond it."""
    paper, values = statement.paper, found.values
    if statement.rule is Rule.AT_MOST:
        return max(0.0, max(values) / paper[0] - 1)
    if statement.rule is Rule.AT_LEAST:
        return max(0.0, 1 - min(values) / paper[0])
    if statement.rule is Rule.TYPICALLY:
        return _beyond(paper, values)
    return max(abs(ours / stated - 1) for ours, stated in zip(values, paper, strict=True))


def _beyond(paper: tuple[float, ...], values: tuple[float, ...]) -> float:
    """Give how far the values reach beyond the stated ends, relative to those."""
    (low, high), (least, most) = paper, values
    return max(0.0, 1 - least / low, most / high - 1)


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Give the lower and the upper quartile: between them lies the middle half of the values."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
