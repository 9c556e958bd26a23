"""Who writes and reads which box of which tensor, as torch.distributed.checkpoint plans it.

A rank's state is boxes of whole tensors by key. Keys and boxes say nothing of ranks, so that what
any division wrote any other can read. All here comes to the same on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

__all__ = [
    "Box",
    "Piece",
    "State",
    "box_at",
    "offered_boxes",
    "place_of",
    "read_items",
    "share_out",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of a whole tensor of some shape: `tensor` holds its numbers on this rank.

    It is a view of what is trained: what is read into it is there.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    tensor: torch.Tensor

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Give the box as torch has it."""
        return ChunkStorageMetadata(offsets=torch.Size(self.offsets), sizes=self.tensor.size())


State = Mapping[str, tuple[Piece, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a rank tells the others of a piece."""

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]  # of the whole tensor
    dtype: str


def offered_boxes(state: State) -> tuple[Box, ...]:
    """Give everything that this rank holds, sorted: the same state makes the same files."""
    return tuple(
        Box(
            key=key,
            offsets=piece.offsets,
            sizes=tuple(piece.tensor.size()),
            shape=piece.shape,
            dtype=str(piece.tensor.dtype).removeprefix("torch."),
        )
        for key in sorted(state)
        for piece in state[key]
    )


def share_out(offered: Sequence[Sequence[Box]]) -> tuple[list[list[WriteItem]], Metadata]:
    """Give what each rank writes, and what is written in all.

    Each box is written once, by whichever of the ranks that hold it has the least to write.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    plans, metadata = planner.create_global_plan(
        [SavePlan([_write_item(box) for box in boxes]) for boxes in offered]
    )
    return [plan.items for plan in plans], metadata


def box_at(state: State, item: WriteItem) -> torch.Tensor:
    """Give the numbers of a box that this rank writes."""
    return _piece_at(state, item.index).tensor


def read_items(state: State, metadata: Metadata) -> list[ReadItem]:
    """Intersect what this rank holds with what was written."""
    items: list[ReadItem] = []
    for key, held in state.items():
        entry = metadata.state_dict_metadata[key]
        assert isinstance(entry, TensorStorageMetadata), f"{key} is no tensor"
        items += create_read_items_for_chunk_list(key, entry, [piece.chunk for piece in held])
    return items


def place_of(state: State, item: ReadItem) -> torch.Tensor:
    """Give the place of the numbers that are read."""
    tensor = _piece_at(state, item.dest_index).tensor
    for dimension, (begin, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dimension, begin, length)
    return tensor


def _write_item(box: Box) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(box.key, box.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(
                offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes)
            ),
            properties=TensorProperties(dtype=getattr(torch, box.dtype)),
            size=torch.Size(box.shape),
        ),
    )


def _piece_at(state: State, index: MetadataIndex) -> Piece:
    assert index.offset is not None, f"{index.fqn}: no place in the whole tensor"
    offsets = tuple(index.offset)
    return next(piece for piece in state[index.fqn] if piece.offsets == offsets)
