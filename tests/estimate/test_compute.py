from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import GPUS
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.device import device_models
from spindle_sim.plan import Backward
from spindle_sim.workload import (
    Attention,
    ContrastiveLoss,
    Embedding,
    Gemm,
    OperatorCost,
    Projection,
    Sharding,
    TransformerLayer,
)

A100 = ComputeModel(gpu=GPUS["a100"], device=device_models().device(GPUS["a100"]))
LAYER = TransformerLayer(width=1280, heads=16, mlp_width=5120)
OPERATORS = st.sampled_from(
    [
        LAYER,
        TransformerLayer(width=384, heads=8, mlp_width=1536, causal=True),
        TransformerLayer(width=1024, heads=16, mlp_width=4096, context_width=768),
        TransformerLayer(width=4096, heads=32, mlp_width=11008, gated=True, key_value_heads=8),
        Projection(inner=1024, columns=50304, logits=True),
        Embedding(vocabulary=50304, width=1024),
        ContrastiveLoss(width=1024),
    ]
)


def test_a_large_product_takes_its_flops_at_the_efficiency_and_its_fixed_time() -> None:
    device, gpu = A100.device, A100.gpu
    expected = device.gemm_fixed_s + 2 * 8192.0**3 / (device.gemm_efficiency * gpu.peak_flops)
    assert A100.product_s(8192, 8192, 8192) == pytest.approx(expected, rel=1e-12)


def test_a_product_of_one_row_is_bound_by_reading_its_weight() -> None:
    device, gpu = A100.device, A100.gpu
    elements = 4096 + 4096 * 12288 + 12288
    bandwidth = device.gemm_memory_efficiency * gpu.memory_bandwidth_bytes_per_s
    expected = device.gemm_fixed_s + 2 * elements / bandwidth
    assert A100.product_s(1, 4096, 12288) == pytest.approx(expected, rel=1e-12)


def test_all_samples_of_a_device_make_one_product() -> None:
    one = Gemm(rows=8 * 257, inner=1280, columns=5120)
    eight = Gemm(rows=257, inner=1280, columns=5120)
    assert A100.gemm_s(eight, 8) == pytest.approx(A100.gemm_s(one, 1), rel=1e-12)


@pytest.mark.parametrize("sharding", [Sharding.COLUMN, Sharding.ROW])
def test_tensor_parallelism_divides_a_sharded_product(sharding: Sharding) -> None:
    gemm = Gemm(rows=8192, inner=8192, columns=8192, sharding=sharding)
    fixed_s = A100.device.gemm_fixed_s
    whole, half = (A100.gemm_s(gemm, 1, tp) - fixed_s for tp in (1, 2))
    assert half == pytest.approx(whole / 2)


def test_tensor_parallelism_leaves_an_unsharded_product_whole() -> None:
    gemm = Gemm(rows=512, inner=1024, columns=1024)
    assert A100.gemm_s(gemm, 1, 4) == A100.gemm_s(gemm, 1, 1)


def test_causal_attention_computes_half_of_the_square() -> None:
    square = Attention(queries=4096, keys=4096, heads=32, head_width=128)
    floor_s = A100.device.kernel_floor_s
    whole = A100.attention_s(square, 8) - floor_s
    half = A100.attention_s(replace(square, causal=True), 8) - floor_s
    assert half == pytest.approx(whole / 2)


def test_a_tiny_operator_takes_its_launches() -> None:
    cost = OperatorCost(gemms=(Gemm(rows=1, inner=8, columns=8),), kernels=14)
    assert A100.forward_s(cost, 1) == pytest.approx(14 * A100.device.launch_s)


def test_the_backward_of_a_large_layer_costs_about_two_forwards() -> None:
    cost = LAYER.cost(tokens=257)
    ratio = A100.backward_s(cost, 64, Backward.FULL) / A100.forward_s(cost, 64)
    assert 1.8 < ratio < 2.2


def test_a_frozen_operator_with_nothing_before_it_has_no_backward() -> None:
    assert A100.backward_s(LAYER.cost(tokens=257), 64, Backward.NONE) == 0.0


def test_input_and_weight_gradients_of_a_projection_add_up_to_its_products() -> None:
    cost = OperatorCost(
        gemms=(Gemm(rows=4096, inner=4096, columns=4096),), kernels=1, traffic_bytes=0.0
    )
    full, inputs, weights = (
        A100.backward_s(cost, 4, kind)
        for kind in (Backward.FULL, Backward.INPUT_ONLY, Backward.WEIGHT_ONLY)
    )
    assert full == pytest.approx(inputs + weights)


def test_without_the_input_gradient_only_the_first_product_is_saved() -> None:
    cost = LAYER.cost(tokens=257)
    saved = A100.backward_s(cost, 64, Backward.FULL) - A100.backward_s(
        cost, 64, Backward.WEIGHT_ONLY
    )
    assert saved == pytest.approx(A100.gemm_s(cost.gemms[0], 64))


@given(
    operator=OPERATORS,
    tokens=st.integers(1, 2048),
    samples=st.integers(1, 512),
    backward=st.sampled_from(list(Backward)),
    tp=st.sampled_from([1, 2, 4]),
)
def test_halving_the_work_of_a_device_saves_time_but_at_most_half(
    operator: TransformerLayer, tokens: int, samples: int, backward: Backward, tp: int
) -> None:
    cost = operator.cost(tokens=tokens, context_tokens=77, batch_size=1024)
    for few, many in (
        (A100.forward_s(cost, samples, tp), A100.forward_s(cost, 2 * samples, tp)),
        (
            A100.backward_s(cost, samples, backward, tp),
            A100.backward_s(cost, 2 * samples, backward, tp),
        ),
    ):
        assert few <= many * (1 + 1e-12)
        assert many <= 2 * few * (1 + 1e-12)


@given(operator=OPERATORS, tokens=st.integers(1, 2048), samples=st.integers(1, 512))
def test_nothing_computes_faster_than_the_peak(
    operator: TransformerLayer, tokens: int, samples: int
) -> None:
    cost = operator.cost(tokens=tokens, context_tokens=77, batch_size=1024)
    computed = sum(g.flops for g in cost.gemms) + sum(
        a.flops * (0.5 if a.causal else 1.0) for a in cost.attentions
    )
    assert A100.forward_s(cost, samples) >= computed * samples / A100.gpu.peak_flops


def test_the_optimizer_moves_thirty_bytes_a_parameter() -> None:
    device, gpu = A100.device, A100.gpu
    bandwidth = device.elementwise_efficiency * gpu.memory_bandwidth_bytes_per_s
    difference = A100.optimizer_step_s(2e9) - A100.optimizer_step_s(1e9)
    assert difference == pytest.approx(30e9 / bandwidth)
    assert A100.optimizer_step_s(0) == 0.0
