"""Experiments: each statement that isn't met, judged again under every change."""

from dataclasses import replace

from spindle_sim.reproduce.cases import Change, part_cases
from spindle_sim.reproduce.curves import study_curves
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.experiments import (
    CHANGES,
    changed_cases,
    changed_curves,
    explanation,
    trials,
)
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.rules import Verdict, judge
from spindle_sim.reproduce.statements import STATEMENTS
from tests.reproduce.handmade import evidence, result

SMALL, SLOW = Change(name="small batches", batch=0.25), Change(name="slow network", nic=0.25)


def under(change: Change, found: CaseResult) -> CaseResult:
    return replace(found, case=replace(found.case, change=change))


def verdict(name: str, given: Evidence) -> Verdict:
    return judge(next(one for one in STATEMENTS if one.id == name), given)


def given(small: float, slow: float) -> Evidence:
    base = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.1, deepspeed=1.71)
    return evidence(
        base,
        under(SMALL, result("multitask-clip", 4, 8, spindle=1.0, megatron=small)),
        under(SLOW, result("multitask-clip", 4, 8, spindle=1.0, megatron=slow)),
    )


def test_only_what_is_not_met_is_tried() -> None:
    known = given(1.67, 1.2)
    judged = (verdict("megatron-max", known), verdict("deepspeed-max", known))
    found = trials(judged, known, (SMALL, SLOW))
    assert [(one.statement.id, one.change, one.met) for one in found] == [
        ("megatron-max", "small batches", True),
        ("megatron-max", "slow network", False),
    ]


def test_the_explanation_names_the_changes_that_meet_a_statement() -> None:
    known = given(1.67, 1.2)
    one = verdict("megatron-max", known)
    assert explanation(one, trials((one,), known, (SMALL, SLOW))) == (
        "met under small batches: 1.67"
    )


def test_the_explanation_says_so_where_no_change_meets_it() -> None:
    known = given(1.3, 1.2)
    one = verdict("megatron-max", known)
    assert explanation(one, trials((one,), known, (SMALL, SLOW))) == (
        "under none of 2 changes; nearest under small batches: 1.3"
    )
    worse = given(1.0, 1.05)
    assert explanation(one, trials((one,), worse, (SMALL, SLOW))) == (
        "none of 2 changes brings it nearer"
    )


def test_every_change_differs_from_the_rest_and_runs_all_cases() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES)
    assert len({replace(change, name="") for change in CHANGES}) == len(CHANGES)
    base = part_cases("fig8", (8, 16), 1.0)
    cases = changed_cases(base, ["5.2", "5.1, table 2"])
    assert {case.change for case in cases} == set(CHANGES)
    assert len(cases) == 10 * len(CHANGES)  # five workloads on two sizes; none of QWen-VAL


def test_only_what_was_run_and_is_unmet_is_run_again() -> None:
    base = part_cases("fig8", (8, 16), 1.0)
    assert changed_cases(base, []) == ()
    assert {case.tasks for case in changed_cases(base, ["appendix D"])} == {4}
    assert changed_cases(base, ["appendix C"]) == ()
    assert all(case.sequential for case in changed_cases(base, ["5.5.2"]))


def test_curves_are_studied_again_where_a_statement_on_them_is_not_met() -> None:
    known = replace(evidence(), curves=study_curves(1.0))
    unmet = replace(verdict("fig4-scalability", known), met=False)
    curves = changed_curves([unmet], 1.0)
    assert set(curves) == {"batches / 2", "batches / 4", "batches / 8"}
    assert {one.change for one in trials((unmet,), known, curves=curves)} == set(curves)
    text = "image-text/text/layers"
    speedups = [known.curves.curve(text).speedup(16)] if known.curves else []
    speedups += [study.curve(text).speedup(16) for study in curves.values()]
    assert speedups == sorted(speedups, reverse=True)  # smaller batches scale worse
    assert changed_curves([replace(unmet, met=True)], 1.0) == {}
