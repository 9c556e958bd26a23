"""Experiments: each statement that isn't met, judged again under every change."""

from dataclasses import replace

import pytest

from spindle_sim.reproduce.cases import Change
from spindle_sim.reproduce.curves import study_curves
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.experiments import (
    CHANGES,
    KEEPING,
    best,
    changed_cases,
    changed_curves,
    explanation,
    reads,
    trials,
    with_changes,
)
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.rules import Verdict, judge
from spindle_sim.reproduce.statements import STATEMENTS
from tests.reproduce.handmade import evidence, outcome, result

LOW, SLOW = Change(name="little memory", memory=0.5), Change(name="slow launch", launch=4.0)
SMALL = Change(name="small batches", batch=0.25)
NETWORK = Change(name="slow network", nic=0.25)


def under(change: Change, found: CaseResult) -> CaseResult:
    return replace(found, case=replace(found.case, change=change))


def verdict(name: str, given: Evidence) -> Verdict:
    return judge(next(one for one in STATEMENTS if one.id == name), given)


def given(low: float, slow: float) -> Evidence:
    base = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.1, deepspeed=1.71)
    return evidence(
        base,
        under(LOW, result("multitask-clip", 4, 8, spindle=1.0, megatron=low)),
        under(SLOW, result("multitask-clip", 4, 8, spindle=1.0, megatron=slow)),
    )


def test_only_what_is_not_met_is_tried() -> None:
    known = given(1.67, 1.2)
    judged = (verdict("megatron-max", known), verdict("deepspeed-max", known))
    found = trials(judged, known, (LOW, SLOW))
    assert [(one.statement.id, one.change, one.met) for one in found] == [
        ("megatron-max", "little memory", True),
        ("megatron-max", "slow launch", False),
    ]


def test_the_explanation_names_the_changes_that_meet_a_statement() -> None:
    known = given(1.67, 1.2)
    one = verdict("megatron-max", known)
    assert explanation(one, trials((one,), known, (LOW, SLOW))) == ("met under little memory: 1.67")


def test_the_explanation_says_so_where_no_change_meets_it() -> None:
    known = given(1.3, 1.2)
    one = verdict("megatron-max", known)
    assert explanation(one, trials((one,), known, (LOW, SLOW))) == (
        "under none of 2 changes; nearest under little memory: 1.3"
    )
    worse = given(1.0, 1.05)
    assert explanation(one, trials((one,), worse, (LOW, SLOW))) == (
        "none of 2 changes brings it nearer"
    )


def test_the_best_trial_is_the_first_that_meets_or_the_nearest() -> None:
    known = given(1.3, 1.67)
    one = verdict("megatron-max", known)
    found = trials((one,), known, (LOW, SLOW))
    assert best(one, found) == found[1]
    assert best(one, found[:1]) == found[0]
    assert best(one, ()) is None
    worse = given(1.0, 1.05)
    assert best(one, trials((one,), worse, (LOW, SLOW))) is None


def test_every_change_differs_from_the_rest() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES)
    assert len({replace(change, name="") for change in CHANGES}) == len(CHANGES)
    assert {change.name for change in KEEPING} == {
        "free communication",
        "no synchronization overlapped",
    }


def test_a_statement_reads_the_cases_and_systems_that_it_compares() -> None:
    known = evidence(
        result("multitask-clip", 10, 8, spindle=1.0, megatron=1.1, seq=1.0, uniform=2.0),
        result("multitask-clip", 4, 8, spindle=1.0, megatron=1.1),
        result("multitask-clip", 10, 64, spindle=1.0, megatron=1.1),  # of 64 it says nothing
    )
    (case,) = reads(verdict("multitask-clip-10-megatron-range", known).statement, known)
    assert (case.tasks, case.gpus, case.strategies) == (10, 8, ("spindle", "megatron"))
    assert not case.sequential
    placed = reads(verdict("placement-ratio", known).statement, known)
    assert {(one.tasks, one.strategies, one.sequential) for one in placed} == {
        (tasks, ("spindle",), True) for tasks in (4, 10)
    }


def test_only_what_an_unmet_statement_reads_is_planned_anew() -> None:
    known = given(1.67, 1.2)
    judged = (verdict("megatron-max", known), verdict("deepspeed-max", known))
    (low, slow) = changed_cases(judged, evidence(known.results[0]), (LOW, SLOW))
    assert {low.change, slow.change} == {LOW, SLOW}
    assert low.strategies == slow.strategies == ("spindle", "megatron")
    assert changed_cases(judged[1:], known, (LOW, SLOW)) == ()  # it is met
    assert changed_cases(judged, known, (LOW, SLOW)) == ()  # run already
    assert changed_cases(judged, known, KEEPING) == ()  # no plan changes
    assert changed_cases(judged, known, (NETWORK,)) == ()  # one node


def test_other_batches_are_cases_of_that_scale_and_shared_with_the_study_of_scales() -> None:
    known = given(1.67, 1.2)
    judged = (verdict("megatron-max", known),)
    (case,) = changed_cases(judged, known, (SMALL,))
    assert (case.batch_scale, case.change) == (0.25, Change())
    there = result("multitask-clip", 4, 8, spindle=1.0)
    there = replace(there, case=replace(there.case, batch_scale=0.25))
    more = replace(known, results=(*known.results, there))
    (case,) = changed_cases(judged, more, (SMALL,))
    assert case.strategies == ("megatron",)
    ran = replace(there, outcomes=result("multitask-clip", 4, 8, megatron=1.6).outcomes)
    found = trials(judged, with_changes(more, [ran], (SMALL,)), (SMALL,))
    assert [trial.found.values for trial in found] == [(1.6,)]


def test_a_case_that_a_change_does_not_concern_stays_what_it_was() -> None:
    near = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.1)
    far = result("multitask-clip", 7, 16, spindle=1.0, megatron=1.2)
    known = evidence(near, far)
    judged = (verdict("megatron-max", known),)
    (case,) = changed_cases(judged, known, (NETWORK,))
    assert case.gpus == 16
    ran = replace(far, case=case, outcomes=result("x", 1, 8, spindle=1.2, megatron=1.2).outcomes)
    (trial,) = trials(judged, with_changes(known, [ran], (NETWORK,)), (NETWORK,))
    assert trial.found.values == (1.1,)


def test_a_statement_that_a_change_cannot_reach_is_not_tried() -> None:
    known = evidence(result("multitask-clip", 4, 8, spindle=1.0, megatron=1.1))
    judged = (verdict("megatron-max", known),)
    images = Change(name="images", image_tokens=1156)
    placed = Change(name="sequential plans", sequential_plans=True)
    assert trials(judged, with_changes(known, [], (images,)), (images, NETWORK, placed)) == ()


def test_sequential_plans_are_made_for_the_placement_alone() -> None:
    base = replace(
        result("ofasys", 4, 16, spindle=1.0),
        sequential=outcome("spindle", 1.2, send_recv_s=0.1),
    )
    change = Change(name="own", sequential_plans=True)
    known = evidence(base)
    judged = (verdict("placement-sequential", known),)
    (case,) = changed_cases(judged, known, (change,))
    assert (case.strategies, case.sequential) == ((), True)
    own = outcome("spindle", 1.1, send_recv_s=0.055)
    ran = replace(base, case=case, outcomes=(), sequential=own)
    (trial,) = trials(judged, with_changes(known, [ran], (change,)), (change,))
    assert trial.found.values == pytest.approx((0.055 / 1.1,))


def test_single_tasks_are_judged_under_a_change_too() -> None:
    single = result("multitask-clip", ("image-text",), 8, spindle=1.0, megatron=1.0)
    changed = under(LOW, result("multitask-clip", ("image-text",), 8, spindle=1.0, megatron=1.48))
    known = evidence(single, changed)
    (trial,) = trials((verdict("single-task-max", known),), known, (LOW,))
    assert trial.found.values == (1.48,)
    assert trial.met


def test_curves_are_studied_again_where_a_statement_on_them_is_not_met() -> None:
    known = replace(evidence(), curves=study_curves(1.0))
    unmet = replace(verdict("fig4-scalability", known), met=False)
    changes = (SMALL, SLOW, NETWORK)
    curves = changed_curves([unmet], 1.0, changes)
    assert set(curves) == {SMALL.name, SLOW.name}  # a network reaches no curve
    assert {one.change for one in trials((unmet,), known, changes, curves)} == set(curves)
    assert known.curves is not None
    text = "image-text/text/layers"
    for study in curves.values():  # a device with less to compute, or slower to begin with
        assert study.curve(text).speedup(16) < known.curves.curve(text).speedup(16)
    assert changed_curves([replace(unmet, met=True)], 1.0, changes) == {}
