"""Valid plans break no rule; every mutation of one is found, by the id of what was mutated."""

import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spindle_sim.plan import Order, ParameterRange, Plan, Round, Slice, validate_plan
from spindle_sim.workload import Custom
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.pipelines import pipelined_plan
from tests.plan.mutations import MUTATIONS, change
from tests.random_plans import plans
from tests.stated_plans import stated, two_round_plan, two_task_plan


def messages(plan: Plan) -> list[str]:
    return [str(violation) for violation in validate_plan(plan)]


@pytest.mark.parametrize("plan", [two_task_plan(), two_round_plan()], ids=["stages", "rounds"])
def test_a_valid_plan_breaks_no_rule(plan: Plan) -> None:
    assert messages(plan) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found_and_named(name: str) -> None:
    mutate, rule, text = MUTATIONS[name]
    found = validate_plan(mutate(two_task_plan()))
    assert [v for v in found if v.rule == rule and text in v.message], [str(v) for v in found]
    for violation in found:
        assert "\n" not in str(violation)
        assert violation.ids
    assert any(identifier in v.message for v in found for identifier in v.ids)


def test_a_round_begins_after_the_backward_of_the_round_before() -> None:
    plan = two_round_plan()
    assert plan.slices[1].start_s == 3.0  # forward 1 s, backward 2 s
    found = messages(change("slices", 1, start_s=2.9)(plan))
    assert found == [
        "device: device 0: slice s1 starts at 2.9 s, but slice s0 holds the device until 3.0 s,"
        " backward included"
    ]


def test_a_frozen_module_has_no_parameter_group() -> None:
    plan = two_task_plan()
    group = plan.parameter_groups[0]
    ranges = tuple(replace(item, parameter_set="c/x") for item in group.parameter_sets)
    added = replace(group, parameter_sets=ranges, devices=(0, 1))
    found = messages(replace(plan, parameter_groups=(*plan.parameter_groups, added)))
    assert any("c/x is frozen" in message for message in found)


def test_zero1_divides_the_optimizer_states_over_the_group() -> None:
    workload = make_workload({"t": ("a",)})
    parts = [Part(metaop="t/a/x", devices=(0, 1, 2, 3))]
    plan = stated(make_plan(workload, make_cluster(), parts, zero1=True))
    assert plan.memory[0].optimizer_bytes == 12 * 1_000_000 / 4
    assert messages(plan) == []
    found = messages(change("memory", 0, optimizer_bytes=2e6)(plan))
    assert len(found) == 1
    assert "device 0: optimizer_bytes" in found[0]


def test_times_of_nothing_need_no_optimum_but_any_time_does() -> None:
    workload = make_workload({"t": ("a",)})
    (module,) = workload.modules
    (block,) = module.blocks
    operator = Custom(name="nothing", parameters=1)
    blocks = (replace(block, operator=operator),)
    workload = replace(workload, modules=(replace(module, blocks=blocks),))
    for forward_s, wrong in ((0.0, []), (1e-9, ["optimum_s is 0.0, but its slices take time"])):
        part = Part(metaop="t/a/x", devices=(0,), forward_s=forward_s, backward_s=0.0)
        plan = replace(stated(make_plan(workload, make_cluster(), [part])), optimum_s=0.0)
        assert messages(plan) == [f"time: plan: {message}" for message in wrong]


COUNTS = {
    "metaops": ("num_ops", "batch", "level", "parameters", "sharded_parameters"),
    "slices": ("first_op", "num_ops", "stage", "round", "dp", "tp"),
    "parameter_groups": ("shard", "num_shards"),
    "memory": ("device",),
}


@pytest.mark.parametrize("size", [10**9, 10**18, 10**400, -(10**400)])
@pytest.mark.parametrize(
    ("section", "field"), [(section, field) for section in COUNTS for field in COUNTS[section]]
)
def test_a_count_however_large_is_found_at_once(section: str, field: str, size: int) -> None:
    plan = change(section, 0, **{field: size})(two_task_plan())
    begun_s = time.perf_counter()
    found = messages(plan)
    assert found or field in ("stage", "round", "level")
    assert all(len(message) < 500 for message in found)
    assert time.perf_counter() - begun_s < 1.0, "some milliseconds on an idle machine"


@pytest.mark.parametrize("size", [10**9, 10**18, 10**400])
@pytest.mark.parametrize("field", ["first_op", "num_ops"])
@pytest.mark.parametrize("name", ["a/x", "z/x"])
def test_a_range_of_parameters_however_large_is_found_at_once(
    name: str, field: str, size: int
) -> None:
    part = ParameterRange(parameter_set=name, first_op=0, num_ops=4)
    part = replace(part, **{field: size})  # type: ignore[arg-type]
    plan = change("parameter_groups", 0, parameter_sets=(part,))(two_task_plan())
    begun_s = time.perf_counter()
    found = messages(plan)
    assert 0 < len(found) < 10
    assert time.perf_counter() - begun_s < 1.0, "some milliseconds on an idle machine"


@given(plans(), st.data())
@settings(max_examples=60)
def test_a_start_that_the_order_does_not_give_is_found(plan: Plan, data: st.DataObject) -> None:
    valid = stated(plan)
    late_s = data.draw(st.sampled_from([1e-4, 1.0, 1e6]))
    latest = max(range(len(plan.slices)), key=lambda index: plan.slices[index].start_s)
    item = plan.slices[latest]
    found = messages(change("slices", latest, start_s=item.start_s + late_s)(valid))
    assert len(found) == 1
    assert found[0].startswith(f"time: slice {item.id}: start_s is ")


@given(plans(), st.data())
@settings(max_examples=60)
def test_no_slice_is_faster_than_the_peak_of_its_devices(plan: Plan, data: st.DataObject) -> None:
    item = data.draw(st.sampled_from(plan.slices))
    metaop = plan.metaop_by_id()[item.metaop]
    peak_flops = plan.cluster.gpu.peak_flops * len(item.devices)
    least_s = metaop.flops * item.num_ops / peak_flops
    at = plan.slices.index(item)
    for share, expected in ((0.999, True), (1.001, False)):
        changed = change("slices", at, forward_s=share * least_s)(stated(plan))
        found = [v for v in validate_plan(changed) if v.rule == "time" and "peak" in v.message]
        assert [v.ids for v in found] == ([(item.id,)] if expected else [])


@given(plans(), st.data())
@settings(max_examples=60)
def test_activations_that_do_not_fit_are_found_whatever_the_plan_says(
    plan: Plan, data: st.DataObject
) -> None:
    valid = stated(plan)
    fullest = max(valid.memory, key=lambda entry: entry.activation_bytes)
    assume(fullest.activation_bytes)
    share = data.draw(st.sampled_from([0.0, 0.5, 0.999, 1.001]))
    lies = tuple(
        replace(entry, activation_bytes=share * entry.activation_bytes) for entry in valid.memory
    )
    gpu = replace(valid.cluster.gpu, memory_bytes=0.9999 * fullest.total_bytes)
    cluster = replace(valid.cluster, gpu=gpu, usable_memory_fraction=1.0)
    found = [
        v.message
        for v in validate_plan(replace(valid, memory=lies, cluster=cluster))
        if v.ids == (f"device {fullest.device}",)
    ]
    assert len(found) == 2
    assert found[0].startswith(f"device {fullest.device}: needs ")
    assert f"its slices hold {fullest.activation_bytes}" in found[1]


@given(plans())
@settings(max_examples=60)
def test_every_random_valid_plan_validates(plan: Plan) -> None:
    assert messages(stated(plan)) == []


def _slice_mutations(item: Slice, num_devices: int) -> dict[str, Slice]:
    moved = tuple(device + num_devices for device in item.devices)
    return {
        "first_op": replace(item, first_op=item.first_op + 1),
        "num_ops": replace(item, num_ops=item.num_ops + 1),
        "dp": replace(item, dp=item.dp + 1),
        "tp": replace(item, tp=item.tp + 1),
        "devices": replace(item, devices=moved),
        "doubled": replace(item, devices=item.devices * 2),
        "metaop": replace(item, metaop=item.metaop + "?"),
        "forward_s": replace(item, forward_s=-item.forward_s),
        "id": replace(item, id=item.id + "?"),
    }


@given(plans(), st.data())
@settings(max_examples=150)
def test_a_random_mutation_of_a_random_plan_is_found(plan: Plan, data: st.DataObject) -> None:
    valid = stated(plan)
    index = data.draw(st.sampled_from(range(len(valid.slices))))
    item = valid.slices[index]
    mutations = _slice_mutations(item, valid.cluster.num_devices)
    name = data.draw(st.sampled_from([*mutations, "dropped"]))
    slices = list(valid.slices)
    if name == "dropped":
        del slices[index]
    else:
        slices[index] = mutations[name]
    if name == "id" and len(slices) == 1 and not valid.flows:
        return  # a lone slice may have any id
    found = validate_plan(replace(valid, slices=tuple(slices)))
    if name == "id" and not any(item.id in (f.source_slice, f.target_slice) for f in valid.flows):
        assert not found  # nothing refers to it: another id is as good
        return
    assert any(item.id in str(v) or item.metaop in str(v) for v in found)


@given(plans(), st.data())
@settings(max_examples=80)
def test_a_start_before_the_inputs_or_the_device_is_found(plan: Plan, data: st.DataObject) -> None:
    valid = stated(plan)
    late = [index for index, item in enumerate(valid.slices) if item.start_s > 1e-5]
    if not late:
        return
    index = data.draw(st.sampled_from(late))
    item = valid.slices[index]
    # start_s is the earliest start: any earlier one finds the device or an input not ready.
    same_round = any(
        other.round == item.round and other is not item and set(other.devices) & set(item.devices)
        for other in valid.slices
    ) or any(flow.target_slice == item.id for flow in valid.flows)
    found = validate_plan(change("slices", index, start_s=item.start_s - 5e-6)(valid))
    if item.round == 0 or same_round:
        assert any(v.rule in {"device", "precedence"} and item.id in v.ids for v in found)


def test_ten_thousand_slices_are_checked_in_two_seconds() -> None:
    chains: dict[str, tuple[str, ...]] = {f"t{index}": ("a", "b") for index in range(100)}
    workload = make_workload(chains, repeat=50, batch=64)
    parts = [
        Part(
            metaop=f"t{task}/{module}/x",
            devices=tuple(range(task % 8 * 8, task % 8 * 8 + 8)),
            first_op=op,
            stage=(task // 8) * 100 + place * 50 + op,
        )
        for task in range(100)
        for place, module in enumerate(("a", "b"))
        for op in range(50)
    ]
    plan = stated(make_plan(workload, make_cluster(8, 8), parts))
    assert len(plan.slices) == 10_000
    started = time.process_time()
    assert messages(plan) == []
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("micro_batches", [9, 10**6, 10**30])
def test_more_micro_batches_than_samples_are_refused_at_once(
    order: Order, micro_batches: int
) -> None:
    plan = pipelined_plan(ranks=2, micro_batches=4, batch=8)
    rounds = (Round(round=0, micro_batches=micro_batches, order=order),)
    (found,) = validate_plan(replace(plan, rounds=rounds))
    assert found.rule == "round"
    assert "more than the 8 samples of the workload's largest batch" in found.message
