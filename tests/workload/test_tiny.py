"""Tiny workloads: the structure of the large ones, and a size that a laptop trains."""

import pytest

from spindle_sim.workload import BUILTIN_WORKLOADS, Custom, Workload, builtin_workload
from spindle_sim.workload.tiny import tiny


@pytest.fixture(params=sorted(BUILTIN_WORKLOADS))
def large(request: pytest.FixtureRequest) -> Workload:
    return builtin_workload(request.param)


def test_tasks_modules_uses_and_flows_stay(large: Workload) -> None:
    small = tiny(large)
    assert [task.name for task in small.tasks] == [task.name for task in large.tasks]
    assert [task.flows for task in small.tasks] == [task.flows for task in large.tasks]
    assert [m.name for m in small.modules] == [m.name for m in large.modules]
    for one, other in zip(small.modules, large.modules, strict=True):
        assert [b.name for b in one.blocks] == [b.name for b in other.blocks]
        assert one.frozen == other.frozen


def test_it_is_small_and_every_operator_says_what_it_computes(large: Workload) -> None:
    small = tiny(large)
    assert small.parameters < 1_000_000 < large.parameters
    assert all(4 <= task.batch_size <= 16 for task in small.tasks)
    assert all(use.tokens <= 32 for task in small.tasks for use in task.uses)
    operators = [block.operator for module in small.modules for block in module.blocks]
    assert not any(isinstance(operator, Custom) for operator in operators)


def test_a_tiny_workload_shrinks_no_further_in_layers_and_items(large: Workload) -> None:
    small = tiny(large)
    again = tiny(small)
    assert [[b.repeat for b in m.blocks] for m in again.modules] == [
        [b.repeat for b in m.blocks] for m in small.modules
    ]
    assert [[u.items for u in t.uses] for t in again.tasks] == [
        [u.items for u in t.uses] for t in small.tasks
    ]
