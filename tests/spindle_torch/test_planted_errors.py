"""What the comparison with one process must find, whatever it allows for rounding."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from spindle_sim.plan import Plan, save_plan
from spindle_sim.workload import Workload
from tests.spindle_torch import planted
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.rounding import Rounding
from tests.spindle_torch.running import check_replicas
from tests.spindle_torch.standing import Left, StandingRanks
from tests.spindle_torch.test_gradients import STEPS, TOLERANCE, Step, beside, check
from tests.spindle_torch.test_uneven_shards import (
    ALL,
    RANKS,
    model,
    pairs_parts,
    planned,
    spans,
    words_parts,
)

OFF_BY = 1e-4


@cache
def trained() -> Workload:
    return model(5, coupled=True)


def uneven_plan() -> Plan:
    """Give a plan whose losses both are of uneven shards."""
    plan = planned(trained(), [*words_parts(), *pairs_parts(ALL, 1)], zero_stage=0)
    assert spans(plan, "contrastive") == {1, 2}
    return plan


@cache
def steps(dtype: str) -> list[Step]:
    one = Reference(trained(), getattr(torch, dtype))
    return [one.step(number) for number in range(STEPS[dtype])]


@cache
def rounding() -> Rounding:
    return Rounding(trained())


def left_by(folder: Path, error: Callable[[], None] | None) -> Left:
    """Run the plan on ranks with a planted error; they agree nevertheless."""
    path = folder / "plan.json"
    save_plan(uneven_plan(), path)
    with StandingRanks(folder, RANKS, error) as standing:
        left = standing.run([path])[path]
    for found in left.values():
        check_replicas(found)
    return left


def compare(left: Left, dtype: str) -> int:
    """Compare as random models are compared."""
    allowed = rounding() if dtype == "float32" else None
    return check(steps(dtype), dtype, left[dtype], allowed)


@pytest.mark.parametrize(
    "error",
    [
        planted.count_own_pairs,
        planted.count_own_samples,
        planted.keep_own_gradients,
        planted.lose_a_peer,
    ],
)
def test_gradients_are_told_from_those_of_ranks_that_are_wrong(
    error: Callable[[], None], tmp_path: Path
) -> None:
    left = left_by(tmp_path, error)
    for dtype in TOLERANCE:
        for found in left[dtype]:  # wrong losses would be told by themselves
            for step, (losses, _) in zip(found["steps"], steps(dtype), strict=True):
                step["losses"] = losses if found is left[dtype][0] else {}
        with pytest.raises(AssertionError, match="at most"):
            compare(left, dtype)


def test_any_gradient_that_is_off_by_one_in_ten_thousand_is_told(tmp_path: Path) -> None:
    left = left_by(tmp_path, None)
    for dtype in TOLERANCE:
        assert compare(left, dtype) == 0
        gradients = steps(dtype)[0][1]
        told = [name for name in gradients if beside(name, gradients) == name]
        assert len(told) > len(gradients) / 2
        for name in told:
            found = [
                gradient
                for rank in left[dtype]
                for shard, gradient in rank["steps"][0]["gradients"].items()
                if shard.split("@")[0] == name
            ]
            right = [gradient.clone() for gradient in found]
            for gradient in found:
                gradient *= 1 + OFF_BY
            with pytest.raises(AssertionError, match="at most"):
                compare(left, dtype)
            for gradient, before in zip(found, right, strict=True):
                gradient.copy_(before)
