"""Enlarged workloads: widths and tokens grow, all else stays, and what fitted still does."""

import pytest

from spindle_sim.planner.contract import contract
from spindle_sim.workload import BUILTIN_WORKLOADS, builtin_workload
from spindle_sim.workload.enlarged import enlarged
from spindle_sim.workload.tiny import tiny


@pytest.mark.parametrize("name", sorted(BUILTIN_WORKLOADS))
def test_products_of_layers_grow_as_widths_and_tokens_do(name: str) -> None:
    small = tiny(builtin_workload(name))
    before, after = contract(small).nodes, contract(enlarged(small, widths=4, tokens=2)).nodes
    assert before.keys() == after.keys()
    for key, node in before.items():
        other = after[key]
        assert (other.metaop.num_ops, other.metaop.batch) == (
            node.metaop.num_ops,
            node.metaop.batch,
        )
        factor = 1 if node.operator.tokens == 1 else 2
        assert other.operator.tokens == factor * node.operator.tokens
        if node.metaop.kind == "transformer_layer":
            for gemm, larger in zip(node.cost.gemms, other.cost.gemms, strict=True):
                assert (larger.inner, larger.columns) == (4 * gemm.inner, 4 * gemm.columns)
                assert larger.rows in (gemm.rows, 2 * gemm.rows)


def test_by_one_nothing_changes() -> None:
    small = tiny(builtin_workload("ofasys"))
    assert enlarged(small) == small
