import math
from dataclasses import replace
from importlib import resources
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_fit import NODE, START, Forecast, fit_software, measured_rows, splits
from spindle_sim.cluster import GPUS, parse_cluster
from spindle_sim.errors import UsageError
from spindle_sim.estimate import EAGER, Estimator, SoftwareModel, software_model
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.device import device_models
from spindle_sim.plan import Backward
from spindle_sim.whatif.measured import padded_vocabulary
from spindle_sim.workload import (
    Attention,
    Block,
    Module,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
    operator_graph,
)

A100 = device_models().device(GPUS["a100"])
MEGATRON = software_model("megatron-deepspeed-2022")
UNFUSED = TransformerLayer(width=1024, heads=16, mlp_width=4096, attention="unfused")


def compute(**fields: object) -> ComputeModel:
    return ComputeModel(gpu=GPUS["a100"], device=A100, software=replace(EAGER, **fields))  # type: ignore[arg-type]


def test_unfused_attention_moves_its_scores_and_multiplies_twice() -> None:
    model = compute(batched_efficiency=0.5)
    attention = Attention(queries=4096, keys=4096, heads=8, head_width=512, fused=False)
    scores, gpu = 8.0 * 4096**2, GPUS["a100"]
    products = 2 * (A100.gemm_fixed_s + 2 * scores * 512 / (0.5 * gpu.peak_flops))
    bandwidth = A100.elementwise_efficiency * gpu.memory_bandwidth_bytes_per_s
    moved = 2 * A100.kernel_floor_s + 4.5 * 2 * scores / bandwidth
    assert model.attention_s(attention, 1) == pytest.approx(products + moved)


def test_tensor_parallelism_divides_unfused_attention() -> None:
    attention = Attention(queries=2048, keys=2048, heads=16, head_width=128, fused=False)
    model = compute()
    fixed = 2 * A100.gemm_fixed_s + 2 * A100.kernel_floor_s
    whole, half = (model.attention_s(attention, 4, tp) - fixed for tp in (1, 2))
    assert half == pytest.approx(whole / 2)


def test_a_product_of_odd_width_has_its_own_efficiency() -> None:
    model = compute(gemm_odd_efficiency=0.25)
    odd, even = model.product_s(8192, 4096, 50257), model.product_s(8192, 4096, 50256)
    assert (odd - A100.gemm_fixed_s) / (even - A100.gemm_fixed_s) == pytest.approx(
        A100.gemm_efficiency / 0.25, rel=1e-3
    )
    assert compute().product_s(8192, 4096, 50257) == pytest.approx(even, rel=1e-3)


def test_a_layer_that_computes_as_long_as_it_launches_takes_a_root_of_two() -> None:
    model = compute(launch_exponent=4.0)
    assert model._launched_s(80 * A100.launch_s, 80) == pytest.approx(2**0.25 * 80 * A100.launch_s)


@given(samples=st.integers(1, 64), tp=st.sampled_from([1, 2, 4]))  # on 8, one sample isn't fused
def test_halving_the_work_saves_time_but_at_most_half_under_the_profile_too(
    samples: int, tp: int
) -> None:
    model = Estimator(NODE, software=MEGATRON).compute
    cost = UNFUSED.cost(tokens=1024)
    for few, many in (
        (model.forward_s(cost, samples, tp), model.forward_s(cost, 2 * samples, tp)),
        (
            model.backward_s(cost, samples, Backward.FULL, tp),
            model.backward_s(cost, 2 * samples, Backward.FULL, tp),
        ),
    ):
        assert few <= many * (1 + 1e-12)
        assert many <= 2 * few * (1 + 1e-12)


def test_sequence_parallelism_divides_the_traffic_of_norms() -> None:
    cost = UNFUSED.cost(tokens=1024)
    model = compute()
    bandwidth = A100.elementwise_efficiency * GPUS["a100"].memory_bandwidth_bytes_per_s
    plain, cut = (
        model.forward_s(cost, 64, 4, sequence_parallel=choice) for choice in (False, True)
    )
    assert plain - cut == pytest.approx(64 * 0.75 * cost.replicated_traffic_bytes / bandwidth)


def test_rings_over_three_nodes_reach_their_share_of_the_network() -> None:
    cluster = parse_cluster("a100:4x8")
    plain = Estimator(cluster)
    shared = Estimator(
        cluster, software=replace(EAGER, ring_network_share=0.5, mixed_ring_network_share=0.25)
    )
    size, one_a_node, two_a_node = 4e9, range(0, 32, 8), range(0, 32, 4)
    assert shared.all_reduce_s(size, one_a_node) == pytest.approx(
        2 * plain.all_reduce_s(size, one_a_node), rel=0.01
    )
    assert shared.all_reduce_s(size, two_a_node) == pytest.approx(
        4 * plain.all_reduce_s(size, two_a_node), rel=0.01
    )
    pair = range(16)  # two nodes
    assert shared.all_reduce_s(size, pair) == plain.all_reduce_s(size, pair)


def test_a_loss_and_a_step_take_their_constants() -> None:
    plain, slow = Estimator(NODE), Estimator(NODE, software=replace(EAGER, step_s=1e-3))
    assert slow.optimizer_step_s(1e9) - plain.optimizer_step_s(1e9) == pytest.approx(1e-3)
    assert slow.optimizer_step_s(0) == 0.0


def test_software_is_part_of_what_a_plan_says_of_its_times() -> None:
    plain, other = Estimator(NODE), Estimator(NODE, software=MEGATRON)
    assert plain.profile_hash != other.profile_hash
    assert "megatron-deepspeed-2022" in other.profile_name


def test_unknown_software_is_refused() -> None:
    with pytest.raises(UsageError, match="no such profile"):
        software_model("nothing")


def test_a_vocabulary_is_padded_only_where_it_is_divided() -> None:
    assert padded_vocabulary(50257, 1) == 50257
    assert padded_vocabulary(50257, 2) == 50432
    assert padded_vocabulary(50257, 8) == 51200


def test_unfused_attention_keeps_what_korthikanti_counts() -> None:
    cost = UNFUSED.cost(tokens=1024)
    expected = 1024 * 1024 * (34 + 5 * 16 * 1024 / 1024)
    assert cost.saved_bytes + cost.saved_replicated_bytes == pytest.approx(expected)
    assert cost.saved_attention_bytes == 5 * 16 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_half_not_fitted_is_met_as_the_documentation_states(seed: int) -> None:
    single, rest = splits(seed, measured_rows("single"))
    multi, others = splits(seed, measured_rows("multi"))
    software = fit_software([*single, *multi])
    forecast = Forecast(software=software)
    for rows, bound in ((rest, 0.05), (others, 0.06)):
        amounts = [
            abs(forecast.iteration_s(row.configuration) / row.measured_s - 1) for row in rows
        ]
        assert fmean(amounts) < bound
        assert median(amounts) < 0.035


@pytest.mark.slow
def test_the_shipped_profile_is_what_the_fit_gives() -> None:
    assert resources.files("spindle_traces").joinpath("software.json").is_file()
    found = fit_software([*measured_rows("single"), *measured_rows("multi")])
    for name in ("gemm_efficiency", "launch_s", "loss_s", "ring_network_share"):
        assert getattr(found, name) == pytest.approx(getattr(MEGATRON, name), rel=0.05)


def test_a_projection_of_logits_pays_the_loss_once_a_micro_batch() -> None:
    from spindle_sim.whatif.measured import Configuration, Setting, configuration_workload
    from spindle_sim.workload import operator_graph

    row = Configuration(
        gpus=1,
        global_batch=1,
        micro_batch=1,
        hidden=1024,
        heads=16,
        layers=1,
        sequence=1024,
        tp=1,
        dp=1,
        pp=1,
    )
    graph = operator_graph(configuration_workload(row, Setting(node=NODE, software=EAGER)))
    head = next(
        data["operator"]
        for _, data in graph.nodes(data=True)
        if isinstance(data["operator"].operator, Projection)
    )
    times = [
        sum(Estimator(NODE, software=item).operation_s(head, Backward.FULL, samples=2))
        for item in (EAGER, replace(EAGER, loss_s=2e-3))
    ]
    assert times[1] - times[0] == pytest.approx(2e-3)
    copied = Estimator(NODE, software=replace(EAGER, logit_bytes=25.0))
    logits = 2 * 1024 * padded_vocabulary(50257, 1)
    bandwidth = A100.elementwise_efficiency * GPUS["a100"].memory_bandwidth_bytes_per_s
    more_s = sum(copied.operation_s(head, Backward.FULL, samples=2)) - times[0]
    assert more_s == pytest.approx(25.0 * logits / bandwidth)


def test_the_pace_of_many_nodes_is_that_of_the_slowest() -> None:
    spread = replace(EAGER, node_spread=0.05)
    assert spread.pace(1) == EAGER.pace(512) == 1.0
    # The expected largest of two normal deviates is 1 / sqrt(pi), of eight 1.4236.
    assert spread.pace(2) == pytest.approx(1 + 0.05 * math.pi**-0.5, rel=0.003)
    assert spread.pace(8) == pytest.approx(1 + 0.05 * 1.4236, rel=0.001)
    one, two = (
        Estimator(parse_cluster(text), software=spread).compute.pace
        for text in ("a100:8", "a100:2x8")
    )
    assert one == 1.0 < two


def test_a_softmax_that_cannot_be_fused_moves_float32_scores_and_launches_more() -> None:
    model = compute(softmax_multiple=4, softmax_fallback_s=1e-3)
    cost = UNFUSED.cost(tokens=1024)
    attention = cost.attentions[0]
    scores = 2 * 1024.0**2  # of one sample, one of eight ranks: two heads
    bandwidth = A100.elementwise_efficiency * GPUS["a100"].memory_bandwidth_bytes_per_s
    for backward, passes in ((False, 16), (True, 17)):
        fallen, plain = (
            item.attention_s(attention, 1, 8, backward=backward) for item in (model, compute())
        )
        assert fallen - plain == pytest.approx(passes * 2 * scores / bandwidth)
    for samples, tp in ((2, 8), (1, 4), (1, 1)):  # 4, 4 and 16 matrices
        assert model.attention_s(attention, samples, tp) == compute().attention_s(
            attention, samples, tp
        )
    launching = compute(softmax_multiple=4)  # one sample on eight ranks is bound by launching
    assert model.forward_s(cost, 1, 8) - launching.forward_s(cost, 1, 8) == pytest.approx(1e-3)
    assert model.backward_s(cost, 1, Backward.FULL, 8) - launching.backward_s(
        cost, 1, Backward.FULL, 8
    ) == pytest.approx(1e-3)


def test_gradients_are_added_to_those_before_where_weights_have_any() -> None:
    model = compute(accumulation_bytes=6.0)
    cost, weights = UNFUSED.cost(tokens=1024), 12 * 1024**2
    bandwidth = A100.elementwise_efficiency * GPUS["a100"].memory_bandwidth_bytes_per_s
    for tp in (1, 4):
        added_s, plain_s = (
            item.backward_s(cost, 64, Backward.FULL, tp) for item in (model, compute())
        )
        assert added_s - plain_s == pytest.approx(6.0 * weights / tp / bandwidth)
    assert model.backward_s(cost, 64, Backward.INPUT_ONLY) == compute().backward_s(
        cost, 64, Backward.INPUT_ONLY
    )


def test_sequence_parallelism_gathers_each_input_again_in_the_backward() -> None:
    software = replace(EAGER, sequence_gathers=1)
    block = Block(name="layer", operator=UNFUSED)
    module = Module(name="layers", blocks=(block,))
    task = Task(name="t", batch_size=8, uses=(ModuleUse(name="u", module="layers", tokens=1024),))
    graph = operator_graph(Workload(name="w", modules=(module,), tasks=(task,)))
    node = next(data["operator"] for _, data in graph.nodes(data=True))

    def times(model: SoftwareModel, tp: int, *, cut: bool) -> tuple[float, float]:
        return Estimator(NODE, software=model).operation_s(
            node, Backward.FULL, samples=4, tp=tp, sequence_parallel=cut
        )

    gather_s = Estimator(NODE).all_gather_s(2.0 * 4 * 1024 * 1024, range(4))
    more, plain = (times(model, 4, cut=True) for model in (software, EAGER))
    assert more[0] == plain[0]
    assert more[1] - plain[1] == pytest.approx(2 * gather_s)
    assert times(software, 4, cut=False) == times(EAGER, 4, cut=False)
    assert times(software, 1, cut=True) == times(EAGER, 1, cut=True)


def test_flash_attention_has_no_softmax_of_its_own() -> None:
    flash = TransformerLayer(width=1024, heads=16, mlp_width=4096).cost(tokens=1024)
    model = compute(softmax_multiple=4, softmax_fallback_s=1e-3)
    assert model.forward_s(flash, 1, 8) == compute().forward_s(flash, 1, 8)


def test_constants_that_no_row_tells_stay_as_they_are() -> None:
    divided = [row for row in measured_rows("single") if row.configuration.tp == 2][:12]
    assert fit_software(divided).gemm_odd_efficiency == START["gemm_odd_efficiency"][0]
