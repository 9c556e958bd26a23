"""Colours are told apart by eyes of every kind; patterns take over where colours end."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from spindle_sim.report.palette import KIND_STYLES, backward_colour, task_style
from spindle_sim.timeline import Kind

Array = NDArray[np.float64]
# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
EYES = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
# Ottosson's OKLab (2020).
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(colour: str, eye: str) -> Array:
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    lab: Array = LAB @ np.cbrt(LMS @ np.clip(EYES[eye] @ linear, 0, 1))
    return lab


@pytest.mark.parametrize("eye", EYES)
def test_fourteen_tasks_and_idle_are_told_apart_by_colour_alone(eye: str) -> None:
    colours = [task_style(index).colour for index in range(14)] + ["#FFFFFF"]
    distances = [np.linalg.norm(seen(a, eye) - seen(b, eye)) for a, b in combinations(colours, 2)]
    assert min(distances) > 0.07  # the seven of Okabe and Ito reach 0.076


@pytest.mark.parametrize("eye", EYES)
def test_synchronization_is_told_from_transfers(eye: str) -> None:
    sync, send = KIND_STYLES[Kind.SYNC], KIND_STYLES[Kind.SEND]
    assert np.linalg.norm(seen(sync.colour, eye) - seen(send.colour, eye)) > 0.2
    assert sync.pattern != send.pattern


def test_forty_two_tasks_have_styles_of_their_own() -> None:
    assert len({task_style(index) for index in range(42)}) == 42
    assert not any(task_style(index).pattern for index in range(7))
    assert all(task_style(index).pattern for index in range(7, 42))


@pytest.mark.parametrize("eye", EYES)
def test_backward_is_told_from_forward_and_from_idle(eye: str) -> None:
    for index in range(14):
        colour = task_style(index).colour
        backward = seen(backward_colour(colour), eye)
        assert np.linalg.norm(seen(colour, eye) - backward) > 0.07
        assert np.linalg.norm(seen("#FFFFFF", eye) - backward) > 0.07
