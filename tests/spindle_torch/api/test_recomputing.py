"""What is computed again in the backward draws the same random numbers, on any device."""

import pytest
import torch
from torch.nn import functional

from spindle_torch.api import local
from spindle_torch.api.local import recomputed

CPU = torch.device("cpu")


@pytest.mark.parametrize("given", [0, 1])
def test_what_drops_numbers_drops_the_same_ones_again(given: int) -> None:
    weight = torch.ones(1000, requires_grad=True)
    runs: list[torch.Tensor] = []

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        dropped = functional.dropout(weight * (tensors[0] if tensors else 1.0), 0.5)
        runs.append(dropped.detach())
        return dropped.exp()  # which keeps what it gave

    tensors = [torch.ones(1000, requires_grad=True)] * given
    made = recomputed(run, tensors, CPU)
    assert isinstance(made, torch.Tensor)
    torch.rand(7)  # others draw in between
    made.sum().backward()  # type: ignore[no-untyped-call]
    assert len(runs) == 2
    assert torch.equal(*runs)


def test_torch_is_told_of_the_device_even_where_nothing_comes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps the random state of devices that arguments lie on, and of no others."""
    devices: list[torch.device] = []

    def checkpoint(run: object, *tensors: torch.Tensor, use_reentrant: bool) -> None:
        del run
        assert not use_reentrant
        devices.extend(tensor.device for tensor in tensors)

    monkeypatch.setattr(local, "checkpoint", checkpoint)
    recomputed(lambda: None, [], torch.device("meta"))
    assert devices == [torch.device("meta")]
