"""Statements on results made by hand: what is compared with what, met and unmet."""

from dataclasses import replace

import pytest

from spindle_sim.reproduce.cases import ALL_GPUS, CASE_STUDY, PHASES, STATED, part_cases
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.rules import Rule, Verdict, judge
from spindle_sim.reproduce.statements import STATEMENTS
from tests.reproduce.handmade import GIB, evidence, outcome, result


def verdict(name: str, given: Evidence) -> Verdict:
    return judge(next(one for one in STATEMENTS if one.id == name), given)


def values(name: str, given: Evidence) -> tuple[float, ...]:
    found = verdict(name, given).found
    assert found is not None
    return found.values


def test_every_statement_has_its_own_id_a_section_and_what_its_rule_needs() -> None:
    assert len({statement.id for statement in STATEMENTS}) == len(STATEMENTS)
    wanted = {Rule.RATIO: 1, Rule.AT_MOST: 1, Rule.AT_LEAST: 1, Rule.HOLDS: 0}
    wanted |= {Rule.RANGE: 2, Rule.TYPICALLY: 2}
    for statement in STATEMENTS:
        assert len(statement.paper) == wanted[statement.rule], statement.id
        assert statement.section
        assert statement.text.endswith(".")


def test_the_papers_numbers_are_all_there() -> None:
    stated = {number for statement in STATEMENTS for number in statement.paper}
    assert stated >= {
        *(1.67, 1.71, 1.31, 1.63, 1.33, 1.37, 1.46, 1.51, 1.16, 1.45, 1.21, 1.17, 1.78, 1.27),
        *(1.26, 1.28, 1.44, 1.20, 1.59, 0.80, 0.95, 0.05, 0.15, 0.06, 3.0, 6.0, 0.27, 0.55),
        *(0.07, 300.0, 1.48),
    }


def test_without_results_only_the_models_are_judged() -> None:
    judged = [s.id for s in STATEMENTS if judge(s, Evidence(results=())).met is not None]
    assert judged == [f"parameters-{name}" for name in ("multitask-clip", "ofasys", "qwen-val")]


def test_the_largest_speed_up_is_taken_over_the_cases_that_the_paper_speaks_of() -> None:
    given = evidence(
        result("multitask-clip", 4, 8, spindle=1.0, megatron=1.2),
        result("ofasys", 7, 16, spindle=1.0, megatron=1.6),
        result("ofasys", 7, 64, spindle=1.0, megatron=9.0),  # of 64 it says nothing
        result("multitask-clip", ("image-text",), 16, spindle=1.0, megatron=8.0),  # appendix C
    )
    assert values("megatron-max", given) == (1.6,)
    assert verdict("megatron-max", given).met is True
    assert verdict("deepspeed-max", given).met is None


def test_a_speed_up_that_is_too_small_is_not_met() -> None:
    given = evidence(result("multitask-clip", 4, 8, spindle=1.0, megatron=1.2, deepspeed=1.2))
    assert verdict("megatron-max", given).met is False


def test_a_range_runs_over_the_cluster_sizes_of_one_workload() -> None:
    given = evidence(
        *(
            result("multitask-clip", 10, gpus, spindle=1.0, megatron=time_s)
            for gpus, time_s in ((8, 1.31), (16, 1.4), (32, 1.63))
        ),
        result("multitask-clip", 7, 8, spindle=1.0, megatron=1.0),
    )
    assert values("multitask-clip-10-megatron-range", given) == (1.31, 1.63)
    assert verdict("multitask-clip-10-megatron-range", given).met is True


def test_scaling_compares_one_system_with_itself() -> None:
    given = evidence(
        result("multitask-clip", 4, 16, spindle=1.45, megatron=2.42),
        result("multitask-clip", 4, 32, spindle=1.0, megatron=2.0),
    )
    assert values("multitask-clip-scaling-spindle", given) == (1.45,)
    assert values("multitask-clip-scaling-megatron", given) == (1.21,)


def test_consistently_faster_fails_by_a_single_case() -> None:
    good = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.2, deepspeed=1.3)
    bad = result("ofasys", 4, 8, spindle=1.0, megatron=0.99, deepspeed=1.3)
    assert verdict("consistently-faster", evidence(good)).met is True
    found = verdict("consistently-faster", evidence(good, bad))
    assert found.met is False
    assert found.found is not None
    assert "ofasys, 4 tasks, 8 GPUs: 0.990" in found.found.how


def test_a_strategy_without_a_plan_is_left_out_of_its_case() -> None:
    one = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.5)
    refused = replace(one, outcomes=(one.outcomes[0], outcome("megatron", 0.0, error="no room")))
    assert verdict("megatron-max", evidence(refused)).met is None


@pytest.mark.parametrize(("time_s", "met"), [(1.05, True), (1.2, False)])
def test_seq_is_comparable_within_ten_percent_of_the_faster_system(
    time_s: float, met: bool
) -> None:
    given = evidence(result("ofasys", 4, 8, seq=time_s, megatron=1.0, deepspeed=2.0))
    assert verdict("seq-comparable", given).met is met


def test_the_deviation_from_the_optimum_is_that_of_the_worst_case() -> None:
    near = result("ofasys", 4, 8, spindle=1.0)
    far = replace(
        result("ofasys", 7, 8),
        outcomes=(outcome("spindle", 1.0, end_of_compute_s=0.96, optimum_s=0.80),),
    )
    assert verdict("fig11-optimality", evidence(near)).met is True
    assert values("fig11-optimality", evidence(near, far)) == pytest.approx((0.2,))
    assert verdict("fig11-optimality", evidence(near, far)).met is False


def test_the_overhead_of_a_placement_is_its_sending_and_receiving() -> None:
    base = result("ofasys", 4, 8, spindle=1.0)
    spread = outcome("spindle", 1.2, send_recv_s=0.1)
    given = evidence(replace(base, sequential=spread))
    assert values("placement-ratio", given) == pytest.approx((5.0, 5.0))
    assert values("placement-sequential", given) == pytest.approx((0.1 / 1.2,))
    assert values("placement-spindle", given) == pytest.approx((0.02,))
    assert verdict("placement-ratio", given).met is False  # not from 3 to 6


def memories(**gibibytes: tuple[float, ...]) -> Evidence:
    """Give the case study with these peaks of the devices."""
    outcomes = [
        outcome(name, 1.0, memory_bytes=tuple(GIB * value for value in peaks))
        for name, peaks in gibibytes.items()
    ]
    return evidence(replace(result(CASE_STUDY.workload, 4, 16), outcomes=tuple(outcomes)))


def test_memory_is_generally_less_where_it_is_on_most_devices() -> None:
    both = {"megatron": (2, 2, 2), "deepspeed": (3, 3, 1.5)}
    assert verdict("memory-below", memories(spindle=(1, 1, 9), **both)).met is True
    assert verdict("memory-below", memories(spindle=(1, 2, 1.6), **both)).met is False
    assert verdict("memory-below", memories(spindle=(1, 1, 1), megatron=(2, 2, 2))).met is None


def test_balance_is_judged_by_the_fullest_device() -> None:
    assert verdict("memory-balanced", memories(spindle=(1.0, 1.05, 0.95))).met is True
    assert verdict("memory-balanced", memories(spindle=(1.0, 1.3, 0.7))).met is False


@pytest.mark.parametrize(
    ("optimus", "uniform", "met"),
    [
        ((1, 3), (0.5, 4), True),
        ((1, 3), (1, 3), False),  # "even more pronounced"
        ((2, 2.1), (0.5, 4), False),  # "significant"
    ],
)
def test_memory_is_imbalanced_under_optimus_and_more_so_under_uniform(
    optimus: tuple[float, float], uniform: tuple[float, float], met: bool
) -> None:
    given = memories(spindle=(1, 1), optimus=optimus, uniform=uniform)
    assert verdict("memory-imbalanced", given).met is met


def test_spindle_is_set_beside_optimus_where_optimus_is_ahead_of_both_systems() -> None:
    ahead = result("ofasys", 4, 8, spindle=1.0, optimus=1.4, megatron=1.5, deepspeed=1.5)
    level = result("ofasys", 7, 8, spindle=1.0, optimus=3.0, megatron=1.5, deepspeed=4.0)
    assert values("over-optimus-max", evidence(ahead, level)) == (1.4,)
    assert values("over-optimus-max", evidence(level)) == (0.0,)
    assert verdict("over-optimus-max", evidence(level)).met is False


def test_stmm_is_set_beside_either_system() -> None:
    given = evidence(result("ofasys", 4, 8, stmm=1.0, megatron=1.2, deepspeed=1.1))
    assert values("stmm-max", given) == (1.2,)


@pytest.mark.parametrize(
    ("name", "others"),
    [("faster-than-stmm", ("stmm",)), ("faster-than-task-level", ("uniform", "optimus"))],
)
def test_consistently_means_in_every_case(name: str, others: tuple[str, ...]) -> None:
    good = result("ofasys", 4, 8, spindle=1.0, **dict.fromkeys(others, 1.1))
    assert verdict(name, evidence(good)).met is True
    for other in others:
        level = result("ofasys", 7, 8, spindle=1.0, **(dict.fromkeys(others, 1.1) | {other: 1.0}))
        found = verdict(name, evidence(good, level))
        assert found.met is False
        assert found.found is not None
        assert f"ofasys, 7 tasks, 8 GPUs: 1.000 of {other}" in found.found.how
    assert verdict(name, evidence(result("ofasys", 4, 8, spindle=1.0))).met is None


def test_optimus_is_better_than_uniform_where_it_is_faster_in_most_cases() -> None:
    faster = [result("ofasys", tasks, 8, optimus=1.0, uniform=1.1) for tasks in (4, 7)]
    level = [result("multitask-clip", tasks, 8, optimus=1.0, uniform=1.0) for tasks in (4, 7)]
    assert verdict("optimus-over-uniform", evidence(*faster, level[0])).met is True
    assert verdict("optimus-over-uniform", evidence(*faster, *level)).met is False


def used(**utilization: float) -> Evidence:
    """Give the case study with these utilizations."""
    outcomes = [outcome(name, 1.0, utilization=value) for name, value in utilization.items()]
    return evidence(replace(result(CASE_STUDY.workload, 4, 16), outcomes=tuple(outcomes)))


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [("fig9-optimus-over-uniform", "optimus", "uniform"), ("fig9-stmm-over-seq", "stmm", "seq")],
)
def test_the_case_study_compares_utilization(name: str, better: str, worse: str) -> None:
    assert verdict(name, used(**{better: 0.5, worse: 0.4})).met is True
    assert verdict(name, used(**{better: 0.4, worse: 0.4})).met is False
    assert verdict(name, used(**{better: 0.4})).met is None


def test_uniform_begins_above_seq_and_declines() -> None:
    curve = tuple((0.1 * step, value) for step, value in enumerate((0.6, 0.6, 0.4, 0.2)))
    parts = (outcome("uniform", 1.0, over_time=curve), outcome("seq", 1.0, utilization=0.5))
    case = result(CASE_STUDY.workload, 4, 16)
    assert verdict("fig9-uniform-begins", evidence(replace(case, outcomes=parts))).met is True
    assert verdict("fig9-uniform-declines", evidence(replace(case, outcomes=parts))).met is True
    parts = (parts[0], outcome("seq", 1.0, utilization=0.6))
    assert verdict("fig9-uniform-begins", evidence(replace(case, outcomes=parts))).met is False


def test_a_metaop_that_is_used_as_well_as_under_seq_is_not_elevated() -> None:
    def given(ours: float) -> Evidence:
        parts = tuple(
            outcome(name, 1.0, metaop_utilization=(("t/m/layers", value), ("t/m/stem", 0.1)))
            for name, value in (("spindle", ours), ("seq", 0.5))
        )
        return evidence(replace(result(CASE_STUDY.workload, 4, 16), outcomes=parts))

    assert verdict("fig9-all-metaops", given(0.51)).met is True
    assert verdict("fig9-all-metaops", given(0.5)).met is False


def test_what_is_typical_is_the_middle_half_of_all_iterations() -> None:
    def given(*shares: float) -> Evidence:
        sizes = [(count, gpus) for count in (4, 7, 10) for gpus in (8, 16, 32)]
        return evidence(
            *(
                replace(
                    result("multitask-clip", count, gpus),
                    outcomes=tuple(
                        outcome(name, 1.0, sync_s=share, send_recv_s=share)
                        for name in ("spindle", "seq")
                    ),
                )
                for (count, gpus), share in zip(sizes, shares, strict=False)
            )
        )

    usual = given(0.01, 0.06, 0.10, 0.15, 0.40)
    assert values("fig10-sync", usual) == pytest.approx((0.06, 0.15))
    assert verdict("fig10-sync", usual).met is True
    assert verdict("fig10-sync", given(0.01, 0.01, 0.10, 0.15, 0.40)).met is False
    assert values("fig10-send-receive", usual) == pytest.approx((0.15,))
    assert verdict("fig10-send-receive", given(0.01, 0.02, 0.03, 0.05, 0.40)).met is True


def test_as_fast_is_not_faster() -> None:
    level = result("multitask-clip", 4, 8, spindle=1.0, megatron=1.0, deepspeed=1.1)
    assert verdict("consistently-faster", evidence(level)).met is False


def test_changing_task_sets_are_lost_by_one_slow_phase() -> None:
    good = [result(CASE_STUDY.workload, tasks, 16, spindle=1.0, seq=1.1) for tasks in PHASES]
    assert verdict("fig13-shortest", evidence(*good)).met is True
    bad = [*good[:-1], result(CASE_STUDY.workload, PHASES[-1], 16, spindle=1.0, seq=0.99)]
    assert verdict("fig13-shortest", evidence(*bad)).met is False


def test_evidence_is_complete_only_with_every_case_that_the_text_speaks_of() -> None:
    cases = [c for c in part_cases("fig8", ALL_GPUS, 1.0) if c.gpus in STATED[c.workload]]
    results = [result(case.workload, case.tasks, case.gpus, spindle=1.0) for case in cases]
    assert evidence(*results).complete
    assert not evidence(*results[1:]).complete
