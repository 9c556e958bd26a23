"""The profiler: what it measures is what the estimator gives back, in the time that it has."""

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from spindle_sim.backend import ProfilingOptions, find_profiler  # noqa: E402
from spindle_sim.cli.application import application  # noqa: E402
from spindle_sim.cluster import parse_cluster  # noqa: E402
from spindle_sim.errors import UsageError  # noqa: E402
from spindle_sim.estimate import Estimator, Profile, load_profile, save_profile  # noqa: E402
from spindle_sim.estimate.probe import Probe, Profiling, to_profile  # noqa: E402
from spindle_sim.plan import Backward  # noqa: E402
from spindle_sim.planner.contract import contract  # noqa: E402
from spindle_sim.planner.probes import probes  # noqa: E402
from spindle_sim.workload import (  # noqa: E402
    ContrastiveLoss,
    Custom,
    Embedding,
    Projection,
    TransformerLayer,
    builtin_workload,
)
from spindle_sim.workload.tiny import tiny  # noqa: E402
from spindle_torch.bench import make_bench  # noqa: E402
from spindle_torch.links import SIZES_BYTES, measured_links  # noqa: E402
from spindle_torch.profiler import TorchProfiler  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
CLUSTER = parse_cluster("a800:1x2")
GRAPH = contract(tiny(builtin_workload("multitask-clip").with_first_tasks(2)))
LAYER = TransformerLayer(width=16, heads=4, mlp_width=32)
OPERATORS = [
    LAYER,
    replace(LAYER, gated=True, causal=True, norm="rms", key_value_heads=2, context_width=24),
    Embedding(vocabulary=64, width=16, extra_parameters=48),
    Projection(inner=16, columns=32, bias=True, norm_width=16),
    Projection(inner=16, columns=64, tied=True, logits=True),
    ContrastiveLoss(width=16, extra_parameters=1),
]


def silent(name: str) -> None:
    del name


def measured(
    found: tuple[Probe, ...], seconds: float, *, device: str = "cpu", dtype: str = "float32"
) -> Profiling:
    options = ProfilingOptions(device=device, dtype=dtype, budget_s=seconds)
    return TorchProfiler().profile(found, options, silent)


@pytest.fixture(scope="module")
def profiling() -> Profiling:
    return measured(probes(GRAPH, Estimator(CLUSTER)), 60.0)


@pytest.fixture(scope="module")
def profile(profiling: Profiling) -> Profile:
    return to_profile(profiling, name="here", date="2026-01-31", tool="spindle-sim, torch")


def test_every_point_is_measured_and_all_times_are_positive(profiling: Profiling) -> None:
    assert not profiling.skipped
    assert len(profiling.results) == len(probes(GRAPH, Estimator(CLUSTER)))
    for result in profiling.results:
        assert min(result.point.forward_s, result.point.backward_s) > 0
        assert result.spread >= 0
        assert result.repeats >= 3


def test_a_profile_survives_its_file(profile: Profile, tmp_path: Path) -> None:
    save_profile(profile, tmp_path / "profile.json")
    read = load_profile(tmp_path / "profile.json")
    assert read == profile
    assert read.provenance.kind == "measured"
    assert read.provenance.date == "2026-01-31"
    assert "not measured: collectives" in read.provenance.source


def test_the_points_of_an_operator_ascend_and_none_is_there_twice(profile: Profile) -> None:
    for item in profile.operators:
        samples = [point.samples for point in item.points]
        assert all(a < b for a, b in pairwise(samples))


@pytest.mark.parametrize("tp", [1, 2])
def test_the_estimator_gives_the_medians_back(
    profile: Profile, profiling: Profiling, tp: int
) -> None:
    """At tp 2 with its all-reduces on top, which are modelled; a loss gathers, modelled too."""
    points = {(r.probe.signature, r.probe.samples): r.point for r in profiling.results}
    estimator = Estimator(CLUSTER, profile)
    for node in GRAPH.nodes.values():
        operator, cost = node.operator, node.operator.cost
        batch = operator.batch_size if cost.gathered_bytes else None
        key = (operator.operator, operator.tokens, operator.context_tokens, tp, batch)
        assert estimator.provenance(operator, tp=tp) == "measured here"
        for n in estimator.curve(operator, Backward.FULL, tp=tp).allocations:
            samples = operator.batch_size * operator.items * tp // n
            point = points[key, samples]
            added_s = 0.0
            if tp > 1 and cost.reductions:
                size_bytes = cost.reduced_bytes * samples / cost.reductions
                added_s = cost.reductions * estimator.all_reduce_s(size_bytes, range(tp))
            expected = {
                Backward.FULL: point.backward_s,
                Backward.INPUT_ONLY: point.input_backward_s,
                Backward.WEIGHT_ONLY: point.weight_backward_s,
            }
            for backward, backward_s in expected.items():
                curve = estimator.curve(operator, backward, tp=tp)
                if not cost.gathered_bytes or n == tp:
                    assert curve.forward_s(n) == pytest.approx(point.forward_s + added_s, rel=1e-9)
                if backward_s is not None:
                    assert curve.backward_s(n) == pytest.approx(backward_s + added_s, rel=1e-9)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda item: item.kind)
@pytest.mark.parametrize("tp", [1, 2])
def test_a_bench_has_the_layers_parameters_and_gives_the_gradients_asked_for(
    operator: TransformerLayer | Embedding | Projection | ContrastiveLoss, tp: int
) -> None:
    probe = Probe(
        operator=operator,
        tokens=1 if isinstance(operator, ContrastiveLoss) else 5,
        samples=4,
        context_tokens=3,
        flowing_tokens=2,
        tp=tp,
        batch_size=8 if isinstance(operator, ContrastiveLoss) else None,
        replicas=2 if isinstance(operator, ContrastiveLoss) else 1,
    )
    bench = make_bench(probe, torch.float32, torch.device("cpu"))
    divided = operator.sharded_parameters
    table = 64 * 16 // tp if isinstance(operator, Projection) and operator.tied else 0
    held = sum(weight.numel() for weight in bench.weights)
    assert held == operator.parameters - divided + divided // tp + table
    assert bench.backwards == (Backward.FULL, Backward.INPUT_ONLY, Backward.WEIGHT_ONLY)
    for backward in bench.backwards:
        bench.want(backward)
        output = bench.forward()
        torch.autograd.backward(output, torch.ones_like(output))
        inputs = [tensor.grad is not None for tensor in bench.inputs]
        weights = [tensor.grad is not None for tensor in bench.weights]
        assert all(inputs) if backward is not Backward.WEIGHT_ONLY else not any(inputs)
        assert all(weights) if backward is not Backward.INPUT_ONLY else not any(weights)
        bench.forget()


def test_chained_operators_take_each_others_output() -> None:
    operator = next(item for item in OPERATORS if isinstance(item, TransformerLayer))
    probe = Probe(operator=operator, tokens=5, samples=4, context_tokens=3, chained=3)
    bench = make_bench(probe, torch.float32, torch.device("cpu"))
    assert bench.length == 3
    assert sum(weight.numel() for weight in bench.weights) == 3 * operator.parameters
    bench.want(Backward.FULL)
    output = bench.forward()
    torch.autograd.backward(output, torch.ones_like(output))
    # The last layer's input depends on the first one's weights, or those would get no gradient.
    assert all(tensor.grad is not None for tensor in (*bench.inputs, *bench.weights))
    alone = make_bench(replace(probe, chained=1), torch.float32, torch.device("cpu"))
    assert alone.length == 1
    loss = Probe(operator=ContrastiveLoss(width=16), tokens=1, samples=4, batch_size=4, chained=3)
    assert make_bench(loss, torch.float32, torch.device("cpu")).length == 1


def test_a_loss_meets_the_whole_batch() -> None:
    """Of 4 pairs, each against 8 that are these 4 twice: the mean over both is log 2 above."""
    one = Probe(operator=ContrastiveLoss(width=16), tokens=1, samples=4, batch_size=4)
    two = replace(one, batch_size=8, replicas=2)
    losses = []
    for probe in (one, two):
        torch.manual_seed(0)
        losses.append(make_bench(probe, torch.float64, torch.device("cpu")).forward().item())
    assert 2 * losses[1] == pytest.approx(losses[0] + torch.tensor(2.0).double().log().item())


def test_an_embedding_into_which_nothing_flows_has_gradients_of_weights_only() -> None:
    probe = Probe(operator=Embedding(vocabulary=64, width=16), tokens=3, samples=2)
    point = measured((probe,), 10.0).results[0].point
    assert point.input_backward_s is None
    assert point.backward_s == point.weight_backward_s


def test_half_precision_is_measured_too() -> None:
    found = measured((Probe(operator=LAYER, tokens=5, samples=4),), 10.0, dtype="bf16")
    assert len(found.results) == 1
    assert "bf16" in found.method


def test_what_does_not_fit_into_the_time_is_left_out_the_largest_first() -> None:
    graph = contract(builtin_workload("multitask-clip").with_first_tasks(1))
    begun_s = time.monotonic()
    found = measured(probes(graph, Estimator(CLUSTER)), 3.0)
    assert time.monotonic() - begun_s < 15.0, "no point that runs longer is begun"
    late = [item.probe.work for item in found.skipped if "--seconds" in item.reason]
    assert late
    assert min(late) >= max(result.probe.work for result in found.results)


def test_operators_that_cannot_run_are_left_out_with_the_reason() -> None:
    layer = Probe(operator=LAYER, tokens=5, samples=2)
    odd = replace(layer, operator=replace(LAYER, mlp_width=33), tp=2)
    custom = replace(layer, operator=Custom(name="stem", parameters=1))
    vast = replace(layer, samples=10**9)
    found = measured((layer, odd, custom, vast), 1e12)
    assert [result.probe for result in found.results] == [layer]
    reasons = {item.probe: item.reason for item in found.skipped}
    assert "mlp_width is 33" in reasons[odd]
    assert "custom" in reasons[custom]
    assert "memory" in reasons[vast]


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    measured((Probe(operator=LAYER, tokens=5, samples=2),), 10.0)
    assert torch.get_num_threads() == before


def test_a_budget_for_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no point of the workload could be measured: would not"):
        measured((Probe(operator=LAYER, tokens=5, samples=2),), 1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"dtype": "float23"}, "did you mean 'float32'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measured((Probe(operator=LAYER, tokens=5, samples=2),), 10.0, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(UsageError, match="1 GPUs are needed, torch sees 0"):
        measured((Probe(operator=LAYER, tokens=5, samples=2),), 10.0, device="cuda")


def test_without_torch_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spindle_torch.profiler.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'spindle-sim\[torch\]'"):
        measured((), 10.0)


def test_a_profiler_is_found_by_its_name() -> None:
    assert find_profiler("torch").name == "torch"
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        find_profiler("touch")


def test_the_command_line_measures_and_compares_with_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    where = ["multitask-clip", "--tiny", "--tasks", "1", "--cluster"]
    where.append(str(ROOT / "examples" / "cluster-cpu.yaml"))
    made = CliRunner().invoke(
        application(),
        ["profile", *where, "--date", "2026-01-31", "--json", "-o", str(path)],
        catch_exceptions=False,
    )
    summary = json.loads(made.stdout)
    assert summary["points"] == sum(len(item.points) for item in load_profile(path).operators)
    assert summary["skipped"] == []
    assert summary["seconds"] < summary["budget_s"] == 300.0
    assert load_profile(path).provenance.date == "2026-01-31"
    compared = CliRunner().invoke(
        application(),
        ["compare", *where, "--strategies", "spindle,seq", "--profile", str(path), "--json"],
        catch_exceptions=False,
    )
    document = json.loads(compared.stdout)
    assert [row["error"] for row in document["strategies"]] == [None, None]
    assert "measured multitask-clip-tiny on" in json.dumps(document["provenance"])


@pytest.mark.slow
def test_links_are_measured_by_size_and_group() -> None:
    found = measured_links(ProfilingOptions(budget_s=5.0, num_processes=2))
    measured_sizes = {
        operation: [link.size_bytes for link in found if link.operation == operation]
        for operation in ("transfer", "all_reduce")
    }
    for sizes in measured_sizes.values():
        assert sizes
        assert sizes == list(SIZES_BYTES[: len(sizes)])
    assert {(link.reach, link.ranks) for link in found} == {("island", 2)}
    assert min(link.time_s for link in found) > 0
