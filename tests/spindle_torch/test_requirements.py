"""What is refused before anything starts."""

import re

import pytest

from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import InputError, PlanError, UsageError
from spindle_torch.requirements import check_requirements
from tests.pipelines import pipelined_plan
from tests.spindle_torch.plans import tiny_plan
from tests.stated_plans import two_task_plan


def test_a_plan_that_can_be_run_gives_a_program_for_each_rank() -> None:
    programs = check_requirements(tiny_plan(), ExecutionOptions(), {})
    assert [program.rank for program in programs] == [0, 1]


def test_custom_operators_are_refused_unless_emulated() -> None:
    with pytest.raises(InputError, match="give a module for 'a/x'"):
        check_requirements(two_task_plan(), ExecutionOptions(), {})
    assert check_requirements(two_task_plan(), ExecutionOptions(emulate=True), {})


def test_another_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="no dtype 'int8'"):
        check_requirements(tiny_plan(), ExecutionOptions(dtype="int8"), {})


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_to_clip_at_that_is_not_above_0_is_refused(norm: float) -> None:
    with pytest.raises(UsageError, match="give a norm above 0"):
        check_requirements(tiny_plan(), ExecutionOptions(clip_norm=norm), {})


def test_parameters_in_ranges_are_refused_with_modules_of_ones_own() -> None:
    plan = pipelined_plan(ranks=1, dp=2, zero_stage=3)
    with pytest.raises(PlanError, match=re.escape("sharded parameters (ZeRO-3), which can be")):
        check_requirements(plan, ExecutionOptions(), None)
    assert check_requirements(plan, ExecutionOptions(emulate=True), {})
