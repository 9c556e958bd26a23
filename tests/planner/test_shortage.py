"""What the error for too little memory says: items that add up, and advice with its figures."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given

from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import Ledger, OutOfMemoryError
from spindle_sim.planner.place import place
from spindle_sim.planner.recompute import split
from spindle_sim.planner.shortage import devices_needed, holdings, shortage
from spindle_sim.units import parse_bytes
from tests.builders import make_cluster
from tests.planner.drafting import Case, cases, make_context

GIGA = 10**9
CAPACITY = 0.92 * 80e9


def filled(context: Context, placed: Sequence[tuple[str, tuple[int, ...], int]]) -> Ledger:
    """Give the ledger of (MetaOp, devices, round), one a stage."""
    ledger = Ledger(context.graph, context.cluster, context.settings.zero1)
    for stage, (name, devices, round_index) in enumerate(placed):
        draft = context.draft(name, num_devices=len(devices), stage=stage, round_index=round_index)
        for part in split([draft], context.settings.recompute):
            ledger.put(part, devices)
    return ledger


@given(cases())
def test_the_items_of_every_device_add_up_to_what_it_holds(case: Case) -> None:
    ledger = Ledger(case.context.graph, case.context.cluster, case.context.settings.zero1)
    placements = place(case.context, case.drafts)
    order = sorted(
        range(len(case.drafts)), key=lambda i: (case.drafts[i].round, case.drafts[i].stage)
    )
    for index in order:
        ledger.put(case.drafts[index], placements[index])
    for device, used in enumerate(ledger.used_bytes()):
        held = holdings(ledger, device)
        assert held.total_bytes == pytest.approx(used, abs=1e-3)
        assert all(
            part <= whole * (1 + 1e-9)
            for (_, part), (_, whole) in zip(sorted(held.trained), sorted(held.states), strict=True)
        )


def test_sharded_optimizer_states_count_by_their_share() -> None:
    context = make_context(
        {"a": 6 * GIGA}, {"t": ("a",), "u": ("a",)}, make_cluster(1, 4), zero1=True
    )
    ledger = filled(context, [("t/a/x", (0, 1), 0), ("u/a/x", (2, 3), 0)])
    held = holdings(ledger, 0)
    assert dict(held.states) == pytest.approx({"a": (2 + 2 + 12 / 4) * 6e9})
    assert dict(held.trained) == pytest.approx({"a": (2 + 12 / 4) * 6e9})


def test_the_fullest_round_is_listed_with_its_working_memory() -> None:
    context = make_context(
        {"a": 1000, "b": 1000},
        {"t": ("a",), "u": ("b",)},
        make_cluster(1, 1),
        repeat=4,
        output_bytes={"a": 1e6, "b": 2e6},
        recompute=["u/b/x"],
    )
    held = holdings(filled(context, [("t/a/x", (0,), 0), ("u/b/x", (0,), 1)]), 0)
    assert held.activations == (("t/a/x", 16 * 4 * 3e6),)
    assert held.working_bytes == 0.0
    together = holdings(filled(context, [("t/a/x", (0,), 0), ("u/b/x", (0,), 0)]), 0)
    assert together.activations == (("t/a/x", 16 * 4 * 3e6), ("u/b/x", 16 * 3 * 2e6))
    assert together.working_bytes == 16 * 6e6


def test_the_sizes_in_the_message_add_up_and_the_advice_follows_from_them() -> None:
    context = make_context(
        {"a": GIGA, "b": 2 * GIGA},
        {"t": ("a", "b")},
        make_cluster(1, 2),
        output_bytes=1e9,
    )
    error = shortage(context, filled(context, [("t/a/x", (0,), 0), ("t/b/x", (0,), 0)]), 0)
    states, activations = 16 * 3e9, 2 * 16 * 3e9
    assert error.short_bytes == pytest.approx(states + activations - CAPACITY)
    text = str(error)
    found = {
        name: parse_bytes(size)
        for name, size in re.findall(r"(hold|states|activations) ([0-9.]+ GiB)", text)
    }
    assert found["states"] + found["activations"] == pytest.approx(found["hold"], rel=1e-3)
    assert "states 44.70 GiB (b 29.80 GiB, a 14.90 GiB)" in text
    assert "a GPU with at least 146 GiB" in text  # 144e9 bytes are 92 % of it
    assert f"a batch scale of at most {int(100 * (CAPACITY - states) / activations) / 100}" in text
    assert "0.26, say 0.25" in text
    assert "frozen modules" not in text  # freeing 42 GB isn't enough


def test_what_is_not_placed_yet_limits_the_advice() -> None:
    # 16 x 5 GB of "b" are to come, on the only device: no batch is small enough.
    context = make_context(
        {"a": GIGA, "b": 5 * GIGA}, {"t": ("a", "b")}, make_cluster(1, 1), output_bytes=2e9
    )
    ledger = filled(context, [("t/a/x", (0,), 0)])
    text = str(shortage(context, ledger, 0, more_to_come=True))
    assert "it would hold at least 104.31 GiB" in text  # 16 + 16 x 6 GB
    assert "a GPU with at least 130 GiB" in text  # 16 x 6 GB and the input of "b": 92 % of it
    assert "batch scale" not in text
    assert "frozen" not in text


def test_freezing_is_advised_where_it_is_enough() -> None:
    context = make_context({"a": 3 * GIGA, "b": 2 * GIGA}, {"t": ("a", "b")}, make_cluster(1, 2))
    error = shortage(context, filled(context, [("t/a/x", (0,), 0), ("t/b/x", (0,), 0)]), 0)
    assert "frozen modules: a would take 39.12 GiB less" in str(error)  # 14 of 16 bytes
    assert "batch scale" not in str(error)  # the states alone are too large


@pytest.mark.parametrize(
    ("recompute", "zero1", "tp", "said"),
    [
        ((), False, 1, "without recomputation, ZeRO-1 off, tensor parallelism 1"),
        (
            ("t/a/x",),
            True,
            2,
            "with recomputation in 1 of 2 MetaOps there, ZeRO-1 on, tensor parallelism 2",
        ),
        (
            ("t/a/x", "t/b/x"),
            True,
            2,
            "with recomputation of all MetaOps there, ZeRO-1 on, tensor parallelism 2",
        ),
    ],
)
def test_what_was_tried_is_said(
    recompute: tuple[str, ...], zero1: bool, tp: int, said: str
) -> None:
    context = make_context(
        {"a": 9 * GIGA, "b": 9 * GIGA},
        {"t": ("a", "b")},
        make_cluster(1, 2),
        tp={"a": tp, "b": tp},
        zero1=zero1,
        recompute=recompute,
    )
    devices = tuple(range(tp))
    ledger = filled(context, [("t/a/x", devices, 0), ("t/b/x", devices, 0)])
    assert f"That is {said}." in str(shortage(context, ledger, 0))


def test_the_number_of_devices_is_the_smallest_that_holds_everything() -> None:
    # Half of the parameters can be divided: P / 2 + P / 2 tp, 4 bytes each, and 12 / dp.
    context = make_context({"a": 10 * GIGA}, {"t": ("a",)}, make_cluster(1, 2))

    def states(num_devices: int) -> float:
        each = []
        for tp in (1, 2, 4, 8):
            if num_devices % tp == 0:
                size = 10e9 * (1 + 1 / tp) / 2
                each.append(size * (4 + 12 * tp / num_devices))
        return min(each)

    assert next(n for n in (4, 8, 16) if states(n) <= CAPACITY) == devices_needed(context) == 4
    assert states(2) > CAPACITY


def test_more_devices_are_not_advised_where_no_number_is_enough() -> None:
    # 4 bytes a parameter, half of which nothing divides, are more than any device has.
    context = make_context({"a": 40 * GIGA}, {"t": ("a",)}, make_cluster(1, 2))
    assert devices_needed(context) is None
    error = shortage(context, filled(context, [("t/a/x", (0,), 0)]), 0)
    assert "more devices" not in str(error)


def test_whole_nodes_are_advised_beyond_one() -> None:
    context = make_context(
        {"a": 1000}, {"t": ("a",)}, make_cluster(1, 8), repeat=200, output_bytes=3e9, batch=32
    )
    # 200 operators keep their inputs: 32 x 199 x 3 GB; 3 x 3 GB at a time for the last samples.
    needed = 32 * 199 * 3e9 / 0.9 / (CAPACITY - 16_000 * 200)
    found = devices_needed(context)
    assert found is not None
    assert found % 8 == 0
    assert needed < found


def test_a_refused_placement_is_never_short_of_less_than_nothing() -> None:
    context = make_context(
        {"a": 4 * GIGA, "b": 4 * GIGA}, {"t": ("a", "b")}, make_cluster(1, 2), zero1=True
    )
    drafts = [
        context.draft("t/a/x", num_devices=2, stage=0),
        context.draft("t/b/x", num_devices=2, stage=1),
    ]
    with pytest.raises(OutOfMemoryError) as refused:
        place(context, drafts)
    assert refused.value.short_bytes == pytest.approx(2 * 10 * 4e9 + 2 * 8 * 3e6 - CAPACITY)
