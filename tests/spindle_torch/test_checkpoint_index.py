"""The index of a checkpoint, and the boxes that runs of numbers fill."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.errors import InputError
from spindle_torch.checkpoint_index import (
    Chunk,
    Cursor,
    FileEntry,
    Index,
    Progress,
    TensorEntry,
    dump_index,
    parse_index,
)
from spindle_torch.checkpoint_state import boxes

PROGRESS = Progress(step=7, seed=3, dtype="float64", cursors={"a": Cursor(batches=7, samples=70)})
FILE = FileEntry(size_bytes=10, sha256="0" * 64)
HALVES = tuple(Chunk(offsets=(2 * i, 0), sizes=(2, 3), file="part.safetensors") for i in range(2))
TENSOR = TensorEntry(dtype="float64", shape=(4, 3), chunks=HALVES)
INDEX = Index(
    progress=PROGRESS, files={"part.safetensors": FILE}, tensors={"model.a": TENSOR}
).sealed()


@given(st.data())
def test_boxes_fill_a_run_of_numbers_exactly_and_in_order(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    count = math.prod(shape)
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    numbers = torch.arange(count).view(shape)
    found = list(boxes(begin, end, shape))
    assert len(found) <= 2 * len(shape) - 1
    flat = [
        numbers[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].flatten()
        for offsets, sizes in found
    ]
    assert all(len(item) for item in flat)
    assert (torch.cat(flat).tolist() if flat else []) == list(range(begin, end))


def test_an_index_is_the_same_after_it_was_written_and_read() -> None:
    text = dump_index(INDEX)
    assert parse_index(text.encode(), "x") == INDEX
    assert dump_index(parse_index(text.encode(), "x")) == text


@given(st.data())
def test_boxes_of_any_runs_fill_a_tensor_unless_one_is_moved(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    count = math.prod(shape)
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
    chunks = [
        Chunk(offsets=tuple(offsets), sizes=tuple(sizes), file="x")
        for begin, end in pairwise(cuts)
        for offsets, sizes in boxes(begin, end, shape)
    ]
    entry = TensorEntry(dtype="float64", shape=shape, chunks=tuple(chunks))
    assert sum(math.prod(chunk.sizes) for chunk in entry.chunks) == count
    if len(chunks) > 1:
        moved = next((item for item in chunks[1:] if item.sizes == chunks[0].sizes), None)
        if moved is not None:
            chunks[chunks.index(moved)] = chunks[0]
            with pytest.raises(InputError, match="overlap"):
                TensorEntry(dtype="float64", shape=shape, chunks=tuple(chunks))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("format"), "is no checkpoint of spindle"),
        (lambda d: d.update(version="2.0"), "has version '2.0' of the format; this reads 1.0"),
        (lambda d: d["progress"].pop("step"), "is corrupt: progress.step"),
        (lambda d: d["progress"].update(step=8), "its index isn't what was written"),
        (lambda d: d["progress"].update(step=-1), "below 0"),
        (lambda d: d["progress"].update(aside="../../etc"), "no folder of a checkpoint"),
        (
            lambda d: d["files"].update({"../x": d["files"]["part.safetensors"]}),
            "'../x' is no file",
        ),
        (lambda d: d["files"].clear(), "lies in a file that isn't listed"),
        (lambda d: d["tensors"]["model.a"].update(dtype="load"), "'load' is no dtype"),
        (lambda d: d["tensors"]["model.a"]["chunks"].pop(), "don't fill it"),
        (lambda d: d["tensors"]["model.a"]["chunks"][1]["offsets"].append(0), "outside of it"),
        (lambda d: d["tensors"]["model.a"]["chunks"][1].update(offsets=[1, 0]), "overlap"),
        (lambda d: d["tensors"]["model.a"]["chunks"][1].update(offsets=[0, 0]), "overlap"),
        (lambda d: d["tensors"]["model.a"]["chunks"][1].update(offsets=[3, 0]), "outside of it"),
    ],
)
def test_an_index_that_was_tampered_with_is_refused_in_one_line(change, message) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(dump_index(INDEX))
    change(document)
    with pytest.raises(InputError) as caught:
        parse_index(json.dumps(document).encode(), "run/step-7")
    (problem,) = caught.value.problems
    assert str(problem).startswith("run/step-7: ")
    assert message in str(problem)
    assert "\n" not in str(problem)


@given(st.integers(0, 2000))
def test_an_index_cut_off_anywhere_is_refused(length: int) -> None:
    text = dump_index(INDEX).encode()
    with pytest.raises(InputError):
        parse_index(text[: min(length, len(text) - 2)], "x")


def test_a_task_reads_on_whatever_the_size_of_its_batches() -> None:
    assert Cursor(batches=2, samples=20).advanced(3, 5) == Cursor(batches=5, samples=35)
    assert replace(INDEX, digest="").sealed() == INDEX
