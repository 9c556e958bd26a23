"""Ranks tell each other values and errors; nothing of it is a pickle."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.spindle_torch.running import run_all
from tests.spindle_torch.tellers import tell

RANKS = 3


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("telling")
    run_all(tell, [(str(folder), rank, RANKS) for rank in range(RANKS)], folder)
    return [json.loads((folder / f"told.{rank}").read_text()) for rank in range(RANKS)]


def test_all_ranks_get_what_each_has(told: list[dict[str, Any]]) -> None:
    assert [found["all"] for found in told] == [[0, 1000, 2000]] * RANKS


def test_only_the_first_rank_gets_what_is_gathered(told: list[dict[str, Any]]) -> None:
    assert [found["first"] for found in told] == [[[0, 0.0], [1, 0.1], [2, 0.2]], None, None]


def test_all_ranks_get_what_the_first_one_has_or_makes(told: list[dict[str, Any]]) -> None:
    assert [found["from_first"] for found in told] == ["of rank 0"] * RANKS
    assert [found["made_by_first"] for found in told] == [[0, "made"]] * RANKS


def test_each_rank_keeps_what_it_makes_itself(told: list[dict[str, Any]]) -> None:
    assert [found["made"] for found in told] == [0, 1, 2]


def test_the_first_ranks_error_is_raised_on_all(told: list[dict[str, Any]]) -> None:
    wrong = ["InputError", "f:3: is wrong\nis wrong, too"]
    assert [found["together"] for found in told] == [wrong] * RANKS
    assert [found["by_first"] for found in told] == [["PlanError", "no such plan"]] * RANKS
