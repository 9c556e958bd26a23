"""Device placement by the guidelines of section 3.5."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan, Slice
from spindle_sim.planner import make_plan
from spindle_sim.planner.affinity import Group
from spindle_sim.planner.assemble import assemble
from spindle_sim.planner.board import Board
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.memory_fit import OutOfMemoryError
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.place import NoRoomError, place
from spindle_sim.simulator import simulate
from spindle_sim.simulator.resharding import Layout, reshard
from spindle_sim.workload import builtin_workload
from tests.builders import make_cluster
from tests.planner.drafting import Case, cases, make_context

Placements = tuple[tuple[int, ...], ...]
GIGA = 10**9
BATCH = 16


def islands(cluster: Cluster, devices: Sequence[int]) -> set[int]:
    return {cluster.island_of(device) for device in devices}


def moved_s(context: Context, drafts: Sequence[DraftSlice], placements: Placements) -> float:
    """Seconds of all transfers, one after the other."""
    board = Board(context, drafts)
    groups = [Group(devices, d.tp) for d, devices in zip(drafts, placements, strict=True)]
    return sum(
        item.directions * board.affinity.transfer_s(groups[item.source], group, item.size_bytes)
        for inputs, group in zip(board.inputs, groups, strict=True)
        for item in inputs
    )


@given(cases(), st.sampled_from(["spindle", "sequential"]))
def test_every_slice_gets_devices_of_its_own(case: Case, method: str) -> None:
    cluster = case.context.cluster
    placements = place(case.context, case.drafts, method=method)
    busy: dict[tuple[int, int], list[int]] = defaultdict(list)
    for draft, devices in zip(case.drafts, placements, strict=True):
        assert len(devices) == draft.num_devices
        assert set(devices) <= set(range(cluster.num_devices))
        busy[draft.round, draft.stage] += devices
        for start in range(0, len(devices), draft.tp):
            ranks = devices[start : start + draft.tp]
            assert ranks == tuple(range(ranks[0], ranks[0] + draft.tp))
            assert ranks[0] % draft.tp == 0
            assert len(islands(cluster, ranks)) == 1
    for devices_of_stage in busy.values():
        assert len(set(devices_of_stage)) == len(devices_of_stage)


@given(cases())
def test_the_same_drafts_get_the_same_devices(case: Case) -> None:
    assert place(case.context, case.drafts) == place(case.context, case.drafts)


def test_a_group_that_fits_in_an_island_gets_one() -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",), "v": ("a",)}, make_cluster(2, 4))
    drafts = [
        context.draft(f"{task}/a/x", num_devices=n, stage=0)
        for task, n in zip("tuv", (2, 4, 2), strict=True)
    ]
    for devices in place(context, drafts):
        assert len(islands(context.cluster, devices)) == 1


def test_a_slice_stays_on_the_devices_that_hold_its_samples() -> None:
    context = make_context(
        {"a": 1000, "b": 1000}, {"t": ("a", "b"), "u": ("a", "b")}, make_cluster(2, 4)
    )
    drafts = [
        context.draft("t/a/x", num_devices=4, stage=0),
        context.draft("u/a/x", num_devices=4, stage=0),
        context.draft("u/b/x", num_devices=4, stage=1),
        context.draft("t/b/x", num_devices=4, stage=1),
    ]
    first, second, third, fourth = place(context, drafts)
    assert (third, fourth) == (second, first)


@pytest.mark.parametrize("larger", ["t", "u"])
def test_the_larger_flow_keeps_the_device_that_two_slices_want(larger: str) -> None:
    sizes = {"a": 1e7, "b": 1e7, "c": 1e3, "d": 1e3} | {"a" if larger == "u" else "b": 1e5}
    context = make_context(
        dict.fromkeys("abcd", 0),
        {"t": ("a", "c"), "u": ("b", "d")},
        make_cluster(2, 1),
        output_bytes=sizes,
    )
    drafts = [
        context.draft("t/a/x", num_devices=1, stage=0, devices=(0,)),
        context.draft("u/b/x", num_devices=1, stage=1, devices=(0,)),
        context.draft("t/c/x", num_devices=1, stage=2),
        context.draft("u/d/x", num_devices=1, stage=2),
    ]
    *_, t, u = place(context, drafts)
    assert (t if larger == "t" else u) == (0,)


@pytest.mark.parametrize(("oversubscription", "device"), [(1.0, 1), (16.0, 0)])
def test_a_slice_waits_for_its_device_where_the_fabric_takes_longer(
    oversubscription: float, device: int
) -> None:
    cluster = make_cluster(2, 1, oversubscription=oversubscription)
    nic = cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency

    def drafted(size_bytes: float) -> tuple[Context, list[DraftSlice]]:
        """Device 0 has the samples of t, and is at work on u when they are to go on."""
        sizes = dict.fromkeys("abc", 0.0) | {"a": size_bytes}
        context = make_context(
            dict.fromkeys("abc", 0),
            {"t": ("a", "c"), "u": ("b",)},
            cluster,
            batch=BATCH,
            output_bytes=sizes,
        )
        return context, [
            context.draft("t/a/x", num_devices=1, stage=0, devices=(0,)),
            context.draft("u/b/x", num_devices=1, stage=1, devices=(0,)),
            context.draft("t/c/x", num_devices=1, stage=2),
        ]

    busy_s = Board(*drafted(0.0)).durations_s[1]
    context, drafts = drafted(0.5 * busy_s * nic / BATCH)  # the NIC takes half as long
    assert place(context, drafts)[-1] == (device,)
    ends_s = []
    for other in (0, 1):
        placements = [(0,), (0,), (other,)]
        plan = assemble(context, drafts, placements, strategy="spindle", optimum_s=0.0)
        ends_s.append(simulate(plan).iteration_s)
    assert ends_s.index(min(ends_s)) == device


def test_a_task_that_shares_parameters_goes_where_they_are() -> None:
    names = ("a", "b", "c", "d")
    chains = {f"t{name}": (name,) for name in names} | {"sharer": ("c",)}
    context = make_context(dict.fromkeys(names, 10**6), chains, make_cluster(4, 2))
    drafts = [context.draft(f"t{name}/{name}/x", num_devices=2, stage=0) for name in names]
    drafts.append(context.draft("sharer/c/x", num_devices=2, stage=1))
    *_, holder, _, sharer = place(context, drafts)
    assert sorted(sharer) == sorted(holder)


def test_of_equal_groups_the_emptiest_is_taken() -> None:
    context = make_context({"a": 10**8, "b": 10**5}, {"t": ("a",), "u": ("b",)}, make_cluster(2, 1))
    drafts = [
        context.draft("t/a/x", num_devices=1, stage=0),
        context.draft("u/b/x", num_devices=1, stage=0, round_index=1),
    ]
    (large,), (small,) = place(context, drafts)
    assert large != small


def test_growing_from_four_to_eight_moves_half_of_the_samples() -> None:
    context = make_context({"a": 0}, {"t": ("a",)}, make_cluster(1, 8), repeat=2)
    drafts = [
        context.draft("t/a/x", num_devices=4, stage=0, num_ops=1),
        context.draft("t/a/x", num_devices=8, stage=1, first_op=1, num_ops=1),
    ]
    before, after = place(context, drafts)
    for position, device in enumerate(before):
        assert after.index(device) // 2 == position


def test_sequential_placement_takes_consecutive_devices_from_zero() -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",)}, make_cluster(2, 4), repeat=2)
    drafts = [
        context.draft("t/a/x", num_devices=4, stage=0, num_ops=1),
        context.draft("u/a/x", num_devices=2, stage=0, num_ops=2),
        context.draft("t/a/x", num_devices=8, stage=1, first_op=1, num_ops=1),
    ]
    placements = place(context, drafts, method="sequential")
    assert placements == ((0, 1, 2, 3), (4, 5), tuple(range(8)))


def test_devices_that_a_strategy_chose_are_kept() -> None:
    context = make_context({"a": 1000}, {"t": ("a",)}, make_cluster(2, 4))
    drafts = [context.draft("t/a/x", num_devices=2, stage=0, devices=(6, 2))]
    assert place(context, drafts) == ((6, 2),)


def test_a_tensor_parallel_group_across_islands_is_refused() -> None:
    context = make_context({"a": 1000}, {"t": ("a",)}, make_cluster(2, 4), tp={"a": 2})
    drafts = [context.draft("t/a/x", num_devices=2, stage=0, devices=(3, 4))]
    with pytest.raises(InfeasibleError, match="tensor-parallel devices 3, 4 span device islands"):
        place(context, drafts)


def full_devices() -> Context:
    # States take 16 bytes a parameter of the 73.6 GB that a device may hold.
    modules = {"x": int(1.3 * GIGA), "y": int(1.3 * GIGA), "z": int(2.5 * GIGA)}
    return make_context(
        modules, {"t": ("x", "y"), "u": ("z",)}, make_cluster(1, 2), output_bytes=1e6
    )


def test_backtracking_moves_an_earlier_slice_where_greed_leads_nowhere() -> None:
    context = full_devices()
    first = [
        context.draft("t/x/x", num_devices=1, stage=0),
        context.draft("t/y/x", num_devices=1, stage=1),
    ]
    drafts = [*first, context.draft("u/z/x", num_devices=2, stage=2)]
    (x,), (y,) = place(context, first)
    assert x == y  # alone, y stays with its samples, and that device is too full for z
    (x,), (y,), z = place(context, drafts)
    assert x != y
    assert sorted(z) == [0, 1]


def test_backtracking_reaches_back_over_several_stages() -> None:
    modules = {"x": int(1.3 * GIGA), "y": int(1.3 * GIGA), "z": int(2.5 * GIGA), "s": 10}
    chains = {"t": ("x", "y"), "u": ("z",), "v": ("s",)}
    context = make_context(modules, chains, make_cluster(1, 2), repeat=1)
    drafts = [
        context.draft("t/x/x", num_devices=1, stage=0),
        context.draft("t/y/x", num_devices=1, stage=1),
        context.draft("v/s/x", num_devices=2, stage=2),
        context.draft("u/z/x", num_devices=2, stage=3),
    ]
    (x,), (y,), _, _ = place(context, drafts)
    assert x != y


@pytest.mark.parametrize("method", ["spindle", "sequential"])
def test_what_fits_nowhere_is_told_with_device_and_bytes(method: str) -> None:
    context = make_context({"a": 5 * GIGA}, {"t": ("a",)}, make_cluster(1, 2))
    drafts = [context.draft("t/a/x", num_devices=2, stage=0)]
    with pytest.raises(OutOfMemoryError) as caught:
        place(context, drafts, method=method)
    error = caught.value
    assert error.short_bytes == pytest.approx(16 * 5e9 + 8 * 3e6 - 0.92 * 80e9)
    text = str(error)
    assert f"device {error.device}: 5.98 GiB short" in text
    assert "it would hold 74.53 GiB, a plan may use 68.55 GiB of its 74.51 GiB" in text
    assert "states 74.51 GiB (a 74.51 GiB); activations 22.89 MiB (t/a/x 22.89 MiB)" in text
    assert "without recomputation, ZeRO-1 off, tensor parallelism 1" in text


def test_the_error_names_whose_activations_fill_the_device() -> None:
    context = make_context(
        {"a": 1000, "b": 1000}, {"t": ("a", "b")}, make_cluster(1, 1), output_bytes=1e9
    )
    drafts = [
        context.draft("t/a/x", num_devices=1, stage=0),
        context.draft("t/b/x", num_devices=1, stage=1),
    ]
    with pytest.raises(OutOfMemoryError) as caught:
        place(context, drafts)
    assert caught.value.metaops == ("t/a/x", "t/b/x")
    assert "activations 89.41 GiB (t/a/x 44.70 GiB, t/b/x 44.70 GiB)" in str(caught.value)


@pytest.mark.parametrize("method", ["spindle", "sequential"])
def test_narrow_slices_leave_room_for_a_wide_group_of_their_stage(method: str) -> None:
    context = make_context(
        {"p": 1000, "q": 1000, "a": 1000, "c": 1000, "b": 1000},
        {"t": ("p", "a", "b"), "u": ("q", "c")},
        make_cluster(2, 4),
        tp={"b": 4},
        output_bytes=1e7,
    )
    drafts = [
        context.draft("t/p/x", num_devices=1, stage=0, devices=(0,)),
        context.draft("u/q/x", num_devices=1, stage=0, devices=(4,)),
        context.draft("t/a/x", num_devices=1, stage=1),
        context.draft("u/c/x", num_devices=1, stage=1),
        context.draft("t/b/x", num_devices=4, stage=1),
    ]
    *_, a, c, b = place(context, drafts, method=method)
    # Where their samples are, a and c would break both islands up.
    assert b in ((0, 1, 2, 3), (4, 5, 6, 7))
    assert not {*a, *c} & set(b)


@pytest.mark.parametrize("method", ["spindle", "sequential"])
def test_too_few_adjacent_devices_are_no_lack_of_memory(method: str) -> None:
    context = make_context(
        {"a": 1000, "c": 1000, "b": 1000},
        {"t": ("a",), "u": ("c",), "v": ("b",)},
        make_cluster(2, 4),
        tp={"b": 4},
    )
    drafts = [
        context.draft("t/a/x", num_devices=1, stage=0, devices=(1,)),
        context.draft("u/c/x", num_devices=1, stage=0, devices=(5,)),
        context.draft("v/b/x", num_devices=4, stage=0),
    ]
    with pytest.raises(NoRoomError, match="fewer than 1 groups of 4 adjacent devices free"):
        place(context, drafts, method=method)


@pytest.mark.parametrize("method", ["spindle", "sequential"])
def test_a_stage_that_needs_more_devices_than_there_are_is_a_broken_strategy(method: str) -> None:
    context = make_context({"a": 1000}, {"t": ("a",), "u": ("a",)}, make_cluster(1, 4))
    drafts = [
        context.draft("t/a/x", num_devices=4, stage=0),
        context.draft("u/a/x", num_devices=1, stage=0),
    ]
    with pytest.raises(AssertionError, match="stage 0 of round 0 needs 5 devices of 4"):
        place(context, drafts, method=method)


def test_optimizer_states_that_a_slice_helps_to_share_are_no_shortage() -> None:
    # t holds 10 bytes a parameter on two devices, so that u's activations don't fit there too. A
    # third device is told 16 bytes a parameter, 75.2 of 73.6 GB, and holds 8, with its activations.
    context = make_context(
        {"a": int(4.7 * GIGA)},
        {"t": ("a",), "u": ("a",)},
        make_cluster(1, 3),
        zero1=True,
        output_bytes=0.5e9,
    )
    drafts = [
        context.draft("t/a/x", num_devices=2, stage=0),
        context.draft("u/a/x", num_devices=1, stage=1),
    ]
    first, second = place(context, drafts)
    assert sorted({*first, *second}) == [0, 1, 2]


@pytest.mark.parametrize("cluster", ["a800:2x8", "a800:4x8"])
@pytest.mark.parametrize("name", ["multitask-clip", "ofasys"])
def test_consecutive_devices_send_more_than_locality_does(name: str, cluster: str) -> None:
    workload = builtin_workload(name).with_first_tasks(7).with_batch_scale(0.5)
    target = parse_cluster(cluster)
    ours = make_plan(workload, target)
    context = context_of(ours)
    drafts = [draft_of(item) for item in ours.slices]
    sent = [
        sum(
            piece.bytes
            for flow in plan.flows
            for piece in reshard(
                layout_of(plan, flow.source_slice), layout_of(plan, flow.target_slice), flow.bytes
            )
            if not piece.is_local
        )
        for plan in (
            assemble(
                context,
                drafts,
                place(context, drafts, method=method),
                strategy="test",
                optimum_s=1.0,
            )
            for method in ("spindle", "sequential")
        )
    ]
    assert sent[0] < sent[1]


def context_of(plan: Plan) -> Context:
    modules = {metaop.id: metaop.module for metaop in plan.metaops}
    return Context(
        workload=plan.workload,
        cluster=plan.cluster,
        graph=contract(plan.workload),
        estimator=Estimator(plan.cluster),
        settings=Settings(
            tp=tuple({modules[item.metaop]: item.tp for item in plan.slices}.items()),
            zero1=plan.zero1,
        ),
    )


def draft_of(item: Slice) -> DraftSlice:
    return DraftSlice(
        metaop=item.metaop,
        first_op=item.first_op,
        num_ops=item.num_ops,
        round=item.round,
        stage=item.stage,
        num_devices=len(item.devices),
        tp=item.tp,
        recompute=item.recompute,
    )


def layout_of(plan: Plan, name: str) -> Layout:
    item = plan.slice_by_id()[name]
    return Layout(devices=item.devices, tp=item.tp)
