"""What every test shares: Hypothesis profiles, seldom garbage collections, `--update-golden`."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

# No deadline: a shared machine stalls now and then, and a slow example isn't a wrong one.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow tests, so that those left at the end let all workers end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Look for garbage in cycles seldom, and not among all that was imported.

    Plans and timelines have no cycles, but each time a million of their parts was looked through:
    simulating large plans took twice as long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@pytest.fixture(autouse=True)
def without_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a test starts see no GPU, unless it is for them: else runs would take them."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew from what the code gives; review them as a diff",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name under tests/golden/, or rewrite the file."""

    def check(name: str, text: str) -> None:
        path = (GOLDEN / name).resolve()  # a name may lead out of a folder that is not there yet
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: make it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs (--update-golden)"

    return check
