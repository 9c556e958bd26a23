import time
from dataclasses import replace

import pytest

from spindle_sim.cluster import GPUS, Cluster
from spindle_sim.estimate import Estimator
from spindle_sim.estimate.device import device_models
from spindle_sim.plan import Backward
from spindle_sim.workload import ContrastiveLoss, Operator, OperatorNode, TransformerLayer

LAYER = TransformerLayer(width=1280, heads=20, mlp_width=5120)


def cluster(nodes: int, gpu: str = "a800") -> Cluster:
    return Cluster(
        name="test",
        gpu=GPUS[gpu],
        num_nodes=nodes,
        devices_per_node=8,
        island_size=8,
        nics_per_node=1,
        nic_bandwidth_bytes_per_s=50e9,
    )


def node(operator: Operator = LAYER, *, tokens: int = 257, batch: int = 96) -> OperatorNode:
    return OperatorNode(
        task="task",
        use="use",
        module="module",
        block="block",
        index=0,
        operator=operator,
        tokens=tokens,
        context_tokens=0,
        items=1,
        batch_size=batch,
    )


def test_valid_allocations_divide_the_batch_and_are_multiples_of_tp() -> None:
    estimator = Estimator(cluster(2))
    assert estimator.curve(node(), Backward.FULL).allocations == (1, 2, 3, 4, 6, 8, 12, 16)
    assert estimator.curve(node(), Backward.FULL, tp=4).allocations == (4, 8, 12, 16)


def test_a_prime_batch_leaves_one_device_or_all_samples_apart() -> None:
    assert Estimator(cluster(2)).curve(node(batch=13), Backward.FULL).allocations == (1, 13)


@pytest.mark.parametrize("tp", [8, 16, 3])
def test_a_degree_that_divides_no_heads_or_leaves_the_island_has_no_allocation(tp: int) -> None:
    assert Estimator(cluster(4)).curve(node(), Backward.FULL, tp=tp).allocations == ()


def test_recomputation_adds_the_forward_to_the_backward() -> None:
    estimator = Estimator(cluster(1))
    plain = estimator.curve(node(), Backward.FULL, tp=2)
    again = estimator.curve(node(), Backward.FULL, tp=2, recompute=True)
    assert again.forward_s(4) == plain.forward_s(4)
    assert again.backward_s(4) == pytest.approx(plain.backward_s(4) + plain.forward_s(4))


def test_tensor_parallelism_pays_its_all_reduces_forward_and_backward() -> None:
    estimator = Estimator(cluster(1))
    cost, samples = node().cost, 96
    reduce_s = 2 * estimator.all_reduce_s(cost.reduced_bytes / 2 * samples, range(2))
    curve = estimator.curve(node(), Backward.FULL, tp=2)
    compute = estimator.compute
    assert curve.forward_s(2) == pytest.approx(compute.forward_s(cost, samples, 2) + reduce_s)
    assert curve.backward_s(2) == pytest.approx(
        compute.backward_s(cost, samples, Backward.FULL, 2) + reduce_s
    )


def test_a_coupled_loss_gathers_its_features_over_all_ranks() -> None:
    estimator = Estimator(cluster(2))
    loss = node(ContrastiveLoss(width=1024), batch=1024)
    curve = estimator.curve(loss, Backward.FULL)
    gather_s = estimator.all_gather_s(1024 * 2 * 2 * 1024, range(16))
    alone_s = estimator.compute.forward_s(loss.cost, 64)
    assert curve.forward_s(16) == pytest.approx(alone_s + gather_s)
    assert curve.forward_s(1) == pytest.approx(estimator.compute.forward_s(loss.cost, 1024))


def test_items_multiply_the_samples() -> None:
    estimator = Estimator(cluster(1))
    eight_clips = replace(node(batch=16), items=8)
    assert estimator.curve(eight_clips, Backward.FULL).time_s(1) == pytest.approx(
        estimator.curve(node(batch=128), Backward.FULL).time_s(1)
    )


def test_a_heavy_operator_scales_further_than_a_light_one() -> None:
    estimator = Estimator(cluster(8))
    light = TransformerLayer(width=384, heads=8, mlp_width=1536)
    speedups = []
    for operator, batch in ((LAYER, 1024), (light, 256)):
        curve = estimator.curve(node(operator, batch=batch), Backward.FULL)
        speedups.append(curve.time_s(1) / curve.time_s(64))
    assert speedups[0] > 40
    assert speedups[1] < 10


def test_a_curve_is_made_once() -> None:
    estimator = Estimator(cluster(1))
    first = estimator.curve(node(), Backward.FULL)
    assert estimator.curve(replace(node(), task="other", index=3), Backward.FULL) is first


def test_the_name_says_which_device_the_constants_come_from() -> None:
    assert Estimator(cluster(1, "a100")).profile_name == "analytic model a100-1 (modelled)"
    assert "from A100-SXM4-80GB" in Estimator(cluster(1, "a800")).profile_name
    assert "from H100-SXM5-80GB" in Estimator(cluster(1, "h200")).profile_name
    assert Estimator(cluster(1)).provenance(node()) == "analytic model a100-1"


@pytest.mark.parametrize("gpu", ["a100", "a800", "a100-pcie", "h100", "h800", "h200", "a40"])
def test_a_gpu_of_a_measured_die_is_not_extrapolated(gpu: str) -> None:
    estimator = Estimator(cluster(1, gpu))
    assert not estimator.extrapolated
    assert "extrapolated" not in estimator.caution
    assert "extrapolated" not in estimator.profile_name


@pytest.mark.parametrize("gpu", ["a100", "a800", "a100-pcie", "a40"])
def test_estimates_that_nothing_speaks_against_need_no_caution(gpu: str) -> None:
    assert Estimator(cluster(1, gpu)).caution == ""


@pytest.mark.parametrize("gpu", ["h100", "h800", "h200"])
def test_estimates_of_a_hopper_are_said_to_be_too_fast(gpu: str) -> None:
    caution = Estimator(cluster(1, gpu)).caution
    assert caution.startswith("estimated too fast: 43 iterations measured on H100s")


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("mi300x", "analytic model a100-1 (from A100-SXM4-80GB, modelled, extrapolated)"),
        ("b200", "analytic model h100-1 (from H100-SXM5-80GB, modelled, extrapolated)"),
        ("l40s", "analytic model a40-1 (from A40-48GB, modelled, extrapolated)"),
    ],
)
def test_a_gpu_without_any_measurement_is_told_loudly(gpu: str, name: str) -> None:
    estimator = Estimator(cluster(1, gpu))
    loudly = "extrapolated: no measurement of this GPU; expect errors of tens of percent"
    assert estimator.extrapolated
    assert estimator.caution == loudly
    assert estimator.profile_name == name
    assert estimator.provenance(node()).endswith(f", {loudly}")


def test_a_gpu_with_a_known_name_but_another_peak_is_extrapolated() -> None:
    known = cluster(1, "a100")
    faster = replace(known, gpu=replace(known.gpu, peak_flops=2 * known.gpu.peak_flops))
    unnamed = replace(known, gpu=replace(known.gpu, name="other"))
    assert Estimator(faster).extrapolated
    assert Estimator(unnamed).extrapolated


def test_the_hash_changes_with_the_constants() -> None:
    models = device_models()
    slower = replace(models.devices[0], launch_s=1e-4)
    other = replace(models, devices=(slower, *models.devices[1:]))
    hashes = {
        Estimator(cluster(1)).profile_hash,
        Estimator(cluster(2)).profile_hash,
        Estimator(cluster(1), models=other).profile_hash,
    }
    assert len(hashes) == 2


def test_fifteen_hundred_curves_on_1024_devices_are_made_in_a_moment() -> None:
    estimator = Estimator(cluster(128))
    nodes = [node(tokens=100 + index, batch=1024) for index in range(1500)]
    start = time.process_time()
    for item in nodes:
        estimator.curve(item, Backward.FULL)
    made = time.process_time()
    for item in nodes:
        estimator.curve(item, Backward.FULL)
    assert made - start < 3.0  # 0.4 s on two cores of 2020; slack for a busy machine
    assert (time.process_time() - made) / len(nodes) < 1e-4
