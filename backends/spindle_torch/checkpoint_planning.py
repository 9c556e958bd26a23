"""Who writes and reads which box of which tensor: planners of torch.distributed.checkpoint.

A rank's state is boxes of whole tensors by key. Keys and boxes say nothing of ranks, so that what
any division wrote any other can read.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

__all__ = ["Piece", "PieceLoadPlanner", "PieceSavePlanner", "State"]


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


class PieceSavePlanner(DefaultSavePlanner):
    """Writes each box once, whichever of the ranks that hold it has the least to write."""

    def __init__(self, state: State) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = state

    def create_local_plan(self) -> SavePlan:
        """Offer everything that this rank holds, sorted: the same state makes the same files."""
        self.plan = SavePlan(
            [_write_item(key, piece) for key in sorted(self.pieces) for piece in self.pieces[key]]
        )
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Give the numbers of a box."""
        return _piece_at(self.pieces, write_item.index).tensor


class PieceLoadPlanner(LoadPlanner):
    """Reads the numbers of every box that this rank holds, from wherever they were written."""

    def __init__(self, state: State) -> None:
        self.pieces = state
        self.metadata: Metadata | None = None

    def set_up_planner(
        self,
        state_dict: Any,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002  (as torch calls it)
    ) -> None:
        """Take note of what was written."""
        del state_dict, is_coordinator
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        """Intersect what this rank holds with what was written."""
        assert self.metadata is not None, "the reader knows what was written"
        items: list[ReadItem] = []
        for key, held in self.pieces.items():
            entry = self.metadata.state_dict_metadata[key]
            assert isinstance(entry, TensorStorageMetadata), f"{key} is no tensor"
            items += create_read_items_for_chunk_list(key, entry, [piece.chunk for piece in held])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Leave every rank its own."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Leave it as it is."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Refuse: there are tensors only."""
        raise AssertionError(f"{read_item.dest_index.fqn}: only tensors are written")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Give the place of the numbers that are read."""
        tensor = _piece_at(self.pieces, read_item.dest_index).tensor
        for dimension, (begin, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            tensor = tensor.narrow(dimension, begin, length)
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing is left to do: it was read into its place."""


def _write_item(key: str, piece: Piece) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(key, piece.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=piece.chunk,
            properties=TensorProperties(dtype=piece.tensor.dtype),
            size=torch.Size(piece.shape),
        ),
    )


def _piece_at(state: State, index: MetadataIndex) -> Piece:
    assert index.offset is not None, f"{index.fqn}: no place in the whole tensor"
    offsets = tuple(index.offset)
    return next(piece for piece in state[index.fqn] if piece.offsets == offsets)
