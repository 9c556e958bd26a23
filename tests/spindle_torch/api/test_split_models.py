"""A split model computes what the model does: losses and all gradients, in float64."""

import pytest

from tests.spindle_torch.api.models import PLAIN, build
from tests.spindle_torch.api.stepping import check_split

PUBLISHED = ("vit", "clip", "whisper_encoder", "whisper", "llama", "llama_tied", "llava", "t5")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PLAIN)
def test_a_split_model_has_the_losses_and_gradients_of_the_model(name: str, seed: int) -> None:
    check_split(build(name), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_losses_and_gradients_when_split(name: str) -> None:
    check_split(build(name), seed=0)
