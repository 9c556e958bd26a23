"""Times on GPUs come from events in the stream, tried on one that is only thought."""

import pytest
import torch

from spindle_sim.backend import ProfilingOptions
from spindle_sim.estimate.probe import Probe
from spindle_sim.timeline import Kind, Phase
from spindle_sim.workload import Custom, TransformerLayer
from spindle_torch import measuring
from spindle_torch.bench import Bench
from spindle_torch.measuring import _free_bytes, _GpuRun, _warm_up
from spindle_torch.recorder import Recorder
from tests.spindle_torch.fake_gpu import CACHE_BYTES, DEVICE, FakeGpu, gpu

__all__ = ["gpu"]

LAYER = TransformerLayer(width=16, heads=4, mlp_width=32)


def test_a_span_is_when_the_stream_did_it_on_the_clock_of_the_iterations_begin(
    gpu: FakeGpu,
) -> None:
    recorder = Recorder(lambda: 100.0, DEVICE)
    assert recorder.begin() == 100.0
    # The clock is read when the stream is known to be there.
    assert gpu.calls == ["record", "wait for event"]
    gpu.run(250)
    start = recorder.mark()
    gpu.run(500)
    recorder.note(Kind.COMPUTE, Phase.FORWARD, start)
    (event,) = recorder.events()
    assert (event.start_s, event.end_s) == pytest.approx((100.25, 100.75))
    # Nothing within the iteration waits for the device.
    assert "synchronize" not in gpu.calls
    assert gpu.calls.count("wait for event") == 1


def test_a_new_iteration_has_a_base_of_its_own(gpu: FakeGpu) -> None:
    clock = iter([10.0, 20.0])
    recorder = Recorder(lambda: next(clock), DEVICE)
    recorder.begin()
    gpu.run(5000)
    assert recorder.begin() == 20.0
    start = recorder.mark()
    gpu.run(1)
    recorder.note(Kind.OPTIMIZER, Phase.STEP, start)
    (event,) = recorder.events()
    assert (event.start_s, event.end_s) == pytest.approx((20.0, 20.001))


def test_no_events_are_made_without_tracing_but_the_base(gpu: FakeGpu) -> None:
    recorder = Recorder(lambda: 1.0, DEVICE, enabled=False)
    recorder.begin()
    recorder.note(Kind.COMPUTE, Phase.FORWARD, recorder.mark())
    assert recorder.events() == ()
    assert gpu.calls == ["record", "wait for event"]


def test_a_run_is_timed_on_an_idle_gpu_with_caches_that_others_have_used(gpu: FakeGpu) -> None:
    weight = torch.ones(3, requires_grad=True)

    def forward() -> torch.Tensor:
        gpu.run(2)
        made = 2 * weight
        made.register_hook(lambda _: gpu.run(7))  # type: ignore[no-untyped-call]
        return made

    others = torch.ones(2 * CACHE_BYTES, dtype=torch.uint8)
    run = _GpuRun(others=others)
    times = run(Bench(forward=forward, inputs=(), weights=(weight,)), torch.ones(3))
    assert times == pytest.approx((2e-3, 7e-3))
    assert gpu.calls == ["synchronize", "record", "run", "record", "run", "record", "synchronize"]
    assert not others.any(), "the caches weren't used"


def test_what_takes_the_caches_is_twice_as_large_as_they_are(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    del gpu
    real = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda size, dtype, device: real(size, dtype=dtype, device="meta")
    )
    assert _GpuRun.on(DEVICE).others.nbytes == 2 * CACHE_BYTES


def test_a_gpu_loads_what_it_needs_before_anything_is_timed(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first point tells that the next would take minutes, and it is left out."""
    made: list[str] = []

    def bench(probe: Probe, dtype: torch.dtype, device: torch.device) -> Bench:
        made.append(f"{probe.operator.kind} {dtype} {device}")
        weight = torch.ones(3, requires_grad=True)
        return Bench(forward=lambda: 2 * weight, inputs=(), weights=(weight,))

    monkeypatch.setattr(measuring, "make_bench", bench)
    custom = Custom(name="mine", parameters=1)
    probes = [Probe(operator=item, tokens=5, samples=2) for item in (custom, LAYER, LAYER)]
    options = ProfilingOptions(device="cuda", dtype="bf16")
    _warm_up(probes, options, DEVICE)
    assert made == [f"{LAYER.kind} torch.bfloat16 cuda:0"]
    assert gpu.calls == ["synchronize"]
    _warm_up(probes, options, torch.device("cpu"))
    assert len(made) == 1


def test_memory_that_tensors_lie_in_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 400)
    assert _free_bytes(DEVICE) == 1100
