"""As under NCCL a batch of messages is one work, and nothing is there before it is waited for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spindle_sim.plan import save_plan
from tests.spindle_torch import test_gradients, test_strategy_plans
from tests.spindle_torch.running import PROBE, check_replicas, run_probes


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_engine_counts_on_nothing_that_was_not_waited_for(ranks: int, tmp_path: Path) -> None:
    check_staged(tmp_path, ranks, "staged-cpu")


def check_staged(folder: Path, ranks: int, place: str) -> None:
    """Compare plans that have everything with one process: messages, sums, ranges, shards."""
    plain = [
        case
        for case in test_gradients.cases(ranks)
        if "dealt" in case.name or case.name == "multitask-clip.spindle"
    ]
    large = list(test_strategy_plans.cases(ranks))
    plans = {case.name: case.plan for case in plain} | {case.name: case.plan for case in large}
    for name, plan in plans.items():
        save_plan(plan, folder / f"{name}.json")
    for case in large:
        if case.options:
            (folder / f"{case.name}.options").write_text(json.dumps(case.options))
    run_probes(folder, ranks, PROBE, place)
    for case in large:
        for dtype in case.dtypes:
            found = left(folder, f"{case.name}.{dtype}", ranks)
            test_strategy_plans.check(case, dtype, found)
            check_replicas(found)
    for plain_case in plain:
        for dtype in test_gradients.STEPS:
            found = left(folder, f"{plain_case.name}.{dtype}", ranks)
            expected = test_gradients.reference(plain_case.workload, dtype)
            test_gradients.check(expected, dtype, found)
            check_replicas(found)


def left(folder: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{name}.{rank}.pt") for rank in range(ranks)]
