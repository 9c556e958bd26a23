"""A GPU as far as events and streams go: a clock that its one stream moves on, and no tensors.

What a host gives to a GPU takes no time of the host's, and time on the stream; an event is when the
stream came to it. So a span that were read off the host's clock would have no length.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda", 0)
CACHE_BYTES = 1024


@dataclass
class FakeGpu:
    """`now_ms` is where the stream is; `calls` what the host asked of the device."""

    now_ms: float = 5.0
    calls: list[str] = field(default_factory=list)

    def run(self, milliseconds: float) -> None:
        """Give the stream something to do."""
        self.calls.append("run")
        self.now_ms += milliseconds

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have torch.cuda speak of it."""
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                assert enable_timing, "an event without timing tells no time"
                self.at_ms: float | None = None

            def record(self) -> None:
                gpu.calls.append("record")
                self.at_ms = gpu.now_ms

            def synchronize(self) -> None:
                gpu.calls.append("wait for event")

            def elapsed_time(self, end: "Event") -> float:
                assert self.at_ms is not None, "was never recorded"
                assert end.at_ms is not None, "was never recorded"
                return end.at_ms - self.at_ms

        def properties(device: object) -> Any:
            del device
            return SimpleNamespace(L2_cache_size=CACHE_BYTES, uuid="fake")

        def synchronize(device: object = None) -> None:
            del device
            gpu.calls.append("synchronize")

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "get_device_properties", properties)
        patch.setattr(torch.cuda, "synchronize", synchronize)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    found = FakeGpu()
    found.install(monkeypatch)
    return found
