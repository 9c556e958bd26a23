"""Changing task sets: training, saving, planning and reloading add up."""

import pytest

from spindle_sim.reproduce.cases import CASE_STUDY, PHASES
from spindle_sim.reproduce.dynamic import ITERATIONS, PLANNING_S, STORAGE_BYTES_PER_S, courses
from tests.reproduce.handmade import evidence, result


def test_a_course_is_training_and_what_every_change_takes() -> None:
    given = evidence(*(result(CASE_STUDY.workload, tasks, 16, spindle=2.0) for tasks in PHASES))
    (course,) = courses(given)
    changes = len(PHASES) - 1
    # 6 GB of states are saved, 4 GB are read for the next plan.
    change_s = 6e9 / STORAGE_BYTES_PER_S + PLANNING_S + 4e9 / STORAGE_BYTES_PER_S
    assert course.total_s == pytest.approx(len(PHASES) * ITERATIONS * 2.0 + changes * change_s)


def test_the_first_task_set_begins_without_a_change() -> None:
    given = evidence(*(result(CASE_STUDY.workload, tasks, 16, spindle=2.0) for tasks in PHASES))
    (course,) = courses(given)
    assert course.phases[0].change_s == 0
    assert all(phase.change_s > 0 for phase in course.phases[1:])


def test_a_system_without_a_plan_for_one_task_set_has_no_course() -> None:
    rows = [result(CASE_STUDY.workload, tasks, 16, spindle=2.0, seq=2.0) for tasks in PHASES[:-1]]
    rows.append(result(CASE_STUDY.workload, PHASES[-1], 16, spindle=2.0))
    assert [course.strategy for course in courses(evidence(*rows))] == ["spindle"]
