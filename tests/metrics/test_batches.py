"""Batches that few numbers of devices divide."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.metrics import batch_notes
from spindle_sim.workload import BUILTIN_WORKLOADS, Workload, builtin_workload
from tests.builders import make_cluster, make_workload


def of_batch(batch: int) -> Workload:
    return make_workload({"image-text": ("a",)}, batch=batch)


@pytest.mark.parametrize(
    ("batch", "num_devices", "note"),
    [
        (341, 16, "341 can be divided over 1, 11 devices only; 336 or 352 would use 16"),
        (
            341,
            48,
            "341 can be divided over 1, 11, 31 devices only; 336 would use 48, 352 would use 44",
        ),
        (170, 16, "170 can be divided over 1, 2, 5, 10 devices only; 160 or 176 would use 16"),
        (97, 16, "97 can be divided over 1 device only; 96 or 112 would use 16"),
        # As large a divisor as there can be, but nothing between it and 1.
        (97, 128, "97 can be divided over 1, 97 devices only; 128 would use 128"),
        (388, 128, "388 can be divided over 1, 2, 4, 97 devices only; 384 or 512 would use 128"),
        # 336 is a multiple of 24, 352 of 16: the next multiple of 24 is further away.
        (341, 24, "341 can be divided over 1, 11 devices only; 336 would use 24, 352 would use 22"),
        (3, 2, "3 can be divided over 1 device only; 2 or 4 would use 2"),
    ],
)
def test_a_batch_that_few_devices_divide_is_told_with_batches_nearby(
    batch: int, num_devices: int, note: str
) -> None:
    notes = batch_notes(of_batch(batch), make_cluster(1, num_devices))
    assert notes == (f"task image-text: batch {note}",)


@pytest.mark.parametrize(("batch", "num_devices"), [(64, 128), (48, 128), (1, 8), (96, 128)])
def test_a_small_batch_of_many_divisors_is_no_reason_for_a_note(
    batch: int, num_devices: int
) -> None:
    assert batch_notes(of_batch(batch), make_cluster(1, num_devices)) == ()


@pytest.mark.parametrize("name", BUILTIN_WORKLOADS)
@pytest.mark.parametrize("num_nodes", [1, 2, 8, 32])
def test_the_built_in_batches_are_divided_well(name: str, num_nodes: int) -> None:
    assert batch_notes(builtin_workload(name), make_cluster(num_nodes, 8)) == ()


@given(st.integers(1, 40), st.integers(1, 64))
def test_a_multiple_of_the_devices_may_use_them_all(factor: int, num_devices: int) -> None:
    notes = batch_notes(of_batch(factor * num_devices), make_cluster(1, num_devices))
    # Only a device count with a hole in its divisors (2 x 97) is worth a word then.
    assert not notes or all(f" {num_devices} devices only" in note for note in notes)


def test_each_task_is_judged_by_itself_and_a_long_list_is_cut() -> None:
    workload = make_workload({"t": ("a",), "u": ("a",), "v": ("a",)})
    batches = (341, 16, 720720 * 37)
    tasks = tuple(
        replace(task, batch_size=batch) for task, batch in zip(workload.tasks, batches, strict=True)
    )
    first, *rest = batch_notes(replace(workload, tasks=tasks), make_cluster(1, 16))
    assert first.startswith("task t: batch 341")
    assert not rest
    few = batch_notes(of_batch(2 * 3 * 4 * 5 * 7), make_cluster(1, 128))
    assert few == ()
    (cut,) = batch_notes(of_batch(2**4 * 3 * 211), make_cluster(1, 128))
    assert "over 1, 2, 3, 4, ..., 12, 16, 24, 48 devices only" in cut
