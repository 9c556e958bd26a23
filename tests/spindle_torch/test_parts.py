"""What the measured parts of plans are taken to be."""

import pytest

pytest.importorskip("torch")

import torch

from spindle_torch.parts import Parts, Times, profiling

_OPERATIONS = ("transfer", "all_reduce", "all_gather")
_SIZES_BYTES = tuple(4**power * 1024 for power in range(8))


def _measured(runs_s: dict[str, list[float]]) -> Times:
    """Give one rank's times, alike for all sizes."""
    return {
        (operation, size_bytes): runs_s[operation]
        for operation in _OPERATIONS
        for size_bytes in _SIZES_BYTES
    }


def _points(*ranks: Times) -> dict[str, set[float]]:
    parts = Parts(
        benches=(), optimizers=(), kinds=(), device=torch.device("cpu"), dtype=torch.float32
    )
    found: dict[str, set[float]] = {}
    for point in profiling(parts, ranks, ranks, elapsed_s=0.0).links:
        found.setdefault(point.operation, set()).add(round(point.time_s, 9))
    return found


def test_messages_take_their_mean_and_collectives_the_median_of_their_slowest_rank() -> None:
    first = _measured(
        {"transfer": [1e-3, 1e-3, 1e-3], "all_reduce": [1e-3, 2e-3, 9e-3], "all_gather": [5e-3] * 3}
    )
    second = _measured(
        {"transfer": [1e-3, 1e-3, 7e-3], "all_reduce": [4e-3, 1e-3, 1e-3], "all_gather": [6e-3] * 3}
    )
    assert _points(first, second) == {
        "transfer": {2e-3},
        "all_reduce": {4e-3},
        "all_gather": {6e-3},
    }


def test_a_rank_alone_has_no_links() -> None:
    assert _points({}) == {}
