"""What all tests of split models need."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Models are built and run in float64, in which equality shows, the same ones each time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
