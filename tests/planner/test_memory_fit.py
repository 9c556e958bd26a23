"""The ledger of device memory during placement."""

import numpy as np
import pytest
from hypothesis import given

from spindle_sim.planner.assemble import assemble
from spindle_sim.planner.memory_fit import Ledger
from spindle_sim.planner.place import place
from spindle_sim.planner.recompute import split
from tests.builders import make_cluster
from tests.planner.drafting import Case, cases, make_context


def ledger_of(case: Case) -> Ledger:
    context = case.context
    return Ledger(context.graph, context.cluster, context.settings.zero1)


@given(cases())
def test_the_ledger_adds_up_to_the_memory_of_the_finished_plan(case: Case) -> None:
    placements = place(case.context, case.drafts)
    ledger = ledger_of(case)
    order = sorted(
        range(len(case.drafts)), key=lambda i: (case.drafts[i].round, case.drafts[i].stage)
    )
    for index in order:
        ledger.put(case.drafts[index], placements[index])
    plan = assemble(case.context, case.drafts, placements, strategy="test", optimum_s=0.0)
    assert ledger.used_bytes() == pytest.approx([m.total_bytes for m in plan.memory], abs=1e-3)


@given(cases())
def test_taking_back_leaves_no_trace(case: Case) -> None:
    placements = place(case.context, case.drafts)
    ledger = ledger_of(case)
    seen = []
    for draft, devices in zip(case.drafts, placements, strict=True):
        seen.append((ledger.used_bytes(), ledger.missing_ops(draft), ledger.bytes_with(draft)))
        ledger.put(draft, devices)
    for draft in reversed(case.drafts):
        ledger.take_back()
        used, missing, full = seen.pop()
        assert np.array_equal(ledger.used_bytes(), used)
        assert np.array_equal(ledger.missing_ops(draft), missing)
        assert np.array_equal(ledger.bytes_with(draft), full)


@given(cases())
def test_what_a_device_would_hold_is_never_told_too_small(case: Case) -> None:
    placements = place(case.context, case.drafts)
    ledger = ledger_of(case)
    for draft, devices in zip(case.drafts, placements, strict=True):
        told = ledger.bytes_with(draft)[list(devices)]
        ledger.put(draft, devices)
        assert (ledger.used_bytes()[list(devices)] <= told + 1e-3).all()


def test_parameters_that_a_device_holds_already_cost_nothing_again() -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",)}, make_cluster(1, 2))
    ledger = Ledger(context.graph, context.cluster, zero1=False)
    ledger.put(context.draft("t/a/x", num_devices=1, stage=0), (0,))
    draft = context.draft("u/a/x", num_devices=1, stage=1)
    assert ledger.missing_ops(draft).tolist() == [0, 1]
    assert ledger.weights.tolist() == [4 * 1000.0, 0.0]
    assert ledger.optimizer.tolist() == [12 * 1000.0, 0.0]


def test_zero_shares_optimizer_states_among_all_devices_that_hold_the_parameters() -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",)}, make_cluster(1, 4), zero1=True)
    ledger = Ledger(context.graph, context.cluster, zero1=True)
    ledger.put(context.draft("t/a/x", num_devices=1, stage=0), (0,))
    assert ledger.optimizer.tolist() == [12_000.0, 0.0, 0.0, 0.0]
    ledger.put(context.draft("u/a/x", num_devices=2, stage=1), (1, 2))
    assert ledger.optimizer == pytest.approx([4000.0, 4000.0, 4000.0, 0.0])


def test_activations_of_a_round_are_gone_in_the_next() -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",)}, make_cluster(1, 1))
    first = context.draft("t/a/x", num_devices=1, stage=0)
    kept = 16 * 3e6  # the batch times what a sample keeps
    apart = Ledger(context.graph, context.cluster, zero1=False)
    apart.put(first, (0,))
    apart.put(context.draft("u/a/x", num_devices=1, stage=0, round_index=1), (0,))
    together = Ledger(context.graph, context.cluster, zero1=False)
    together.put(first, (0,))
    together.put(context.draft("u/a/x", num_devices=1, stage=1), (0,))
    assert apart.peak.tolist() == [kept]
    assert together.peak.tolist() == [2 * kept]


def test_recomputing_an_operator_takes_memory_on_top_of_what_is_kept() -> None:
    context = make_context(
        {"a": 1000}, {"t": ("a",)}, make_cluster(1, 1), repeat=4, recompute=["t/a/x"]
    )
    ledger = Ledger(context.graph, context.cluster, zero1=False)
    (draft,) = split([context.draft("t/a/x", num_devices=1, stage=0)], context.settings.recompute)
    ledger.put(draft, (0,))
    inputs = 3 * 16 * 1e6  # the first operator reads data, the others keep what they are given
    assert ledger.peak.tolist() == [inputs + 16 * 3e6]
