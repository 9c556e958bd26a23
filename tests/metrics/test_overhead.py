"""The engine's own time, by hand."""

import pytest

from spindle_sim.metrics import engine_time
from spindle_sim.timeline import Kind, Phase, Span, Timeline


def span(device: int, start_s: float, end_s: float, **others: float) -> Span:
    return Span(
        device=device,
        start_s=start_s,
        end_s=end_s,
        kind=Kind.COMPUTE,
        phase=Phase.FORWARD,
        **others,  # type: ignore[arg-type]
    )


def timeline(*spans: Span, num_devices: int = 2) -> Timeline:
    return Timeline(backend="torch-gloo", num_devices=num_devices, spans=spans)


def test_what_lies_between_spans_is_the_engines_and_what_lies_around_them_is_not() -> None:
    """Device 0: gaps of 1 s and 2 s. Device 1 starts late, waits within a span, and has no gap."""
    found = engine_time(
        timeline(
            span(0, 0.0, 2.0),
            span(0, 3.0, 5.0),
            span(0, 7.0, 10.0),
            span(1, 4.0, 6.0, wait_s=1.5),
            span(1, 6.0, 8.0),
        )
    )
    assert found.device_s == (3.0, 0.0)
    assert found.share == pytest.approx(0.15)


def test_spans_that_overlap_leave_no_gap_twice() -> None:
    found = engine_time(timeline(span(0, 0.0, 5.0), span(0, 1.0, 2.0), span(0, 6.0, 7.0)))
    assert found.device_s == (1.0, 0.0)


def test_nothing_takes_no_time() -> None:
    assert engine_time(timeline()).share == 0.0
    assert engine_time(timeline(num_devices=0)).share == 0.0
