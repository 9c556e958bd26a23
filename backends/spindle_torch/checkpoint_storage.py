"""Checkpoints on a file system, for torch.distributed.checkpoint: safetensors and a JSON index.

torch's own storage keeps its metadata as a pickle, which can run code when it is loaded
(docs/decisions/017-checkpoints-without-pickle.md).
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from spindle_sim.errors import ExecutionError, InputError
from spindle_torch.checkpoint_folder import INDEX_NAME, begin_writing, commit
from spindle_torch.checkpoint_index import (
    Chunk,
    FileEntry,
    Index,
    Progress,
    TensorEntry,
    dump_index,
    piece_name,
)

__all__ = ["FolderReader", "FolderWriter"]

_FILE_BYTES = 2**28  # of numbers in one file: they are in memory twice while it is written


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Where a box was written, and to what a file."""

    file: str
    entry: FileEntry


class FolderWriter(StorageWriter):
    """Writes one checkpoint to a folder that doesn't exist before it is whole."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.unfinished = folder.with_name(folder.name + ".tmp")
        self.progress = progress

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def set_up_storage_writer(
        self,
        is_coordinator: bool,  # noqa: FBT001  (as torch calls it)
        *_args: Any,
        **_options: Any,
    ) -> None:
        """Make the folder, before any rank writes."""
        if is_coordinator:
            self.unfinished = begin_writing(self.folder)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave it as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the writers, so that their files have different names."""
        return [replace(plan, storage_data=number) for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's boxes into files of its own.

        Raises:
            ExecutionError: the file system doesn't take them.
        """
        results: list[WriteResult] = []
        for number, items in enumerate(_shared_out(plan.items)):
            name = f"part-{plan.storage_data:05d}-{number:05d}.safetensors"
            try:
                entry = self._write_file(name, items, planner)
            except OSError as error:
                raise ExecutionError(
                    f"{self.unfinished / name}: can't be written: {os.strerror(error.errno or 0)}"
                ) from error
            results += [
                WriteResult(
                    index=item.index,
                    size_in_bytes=_size_bytes(item),
                    storage_data=_Written(file=name, entry=entry),
                )
                for item in items
            ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index last, and give the folder its name.

        Raises:
            ExecutionError: the file system doesn't take it.
        """
        index = _index(self.progress, metadata, [item for found in results for item in found])
        try:
            _write_through(self.unfinished / INDEX_NAME, dump_index(index).encode())
            commit(self.unfinished)
        except OSError as error:
            raise ExecutionError(
                f"{self.folder}: can't be written: {os.strerror(error.errno or 0)}"
            ) from error

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether torch may choose this by a path alone: it can't, the progress is missing."""
        del checkpoint_id
        return False

    def _write_file(self, name: str, items: Iterable[WriteItem], planner: SavePlanner) -> FileEntry:
        tensors = {}
        for item in items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor), f"{item.index.fqn} is no tensor"
            offsets = tuple(item.index.offset or ())
            # A copy: a view would be written with all of the storage behind it.
            own = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            tensors[piece_name(item.index.fqn, offsets)] = own
        content = save(tensors)
        _write_through(self.unfinished / name, content)
        return FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class FolderReader(StorageReader):
    """Reads one checkpoint, whose index was read before."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Give what was written, as torch has it."""
        return Metadata({key: _metadata(entry) for key, entry in self.index.tensors.items()})

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001  (as torch calls it)
        *_args: Any,
        **_options: Any,
    ) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave it as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave them as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the numbers into their places, a file after the other.

        Raises:
            InputError: a file hasn't what the index says.
        """
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._chunk(item).file, []).append(item)
        for name, items in by_file.items():
            try:
                with safe_open(self.folder / name, framework="pt") as file:
                    for item in items:
                        self._read(file, item, planner)
            except (SafetensorError, OSError) as error:
                raise InputError(f"{self.folder}: is corrupt: {name}: {error}") from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether torch may choose this by a path alone: it can't, the index is missing."""
        del checkpoint_id
        return False

    def _chunk(self, item: ReadItem) -> Chunk:
        offsets = tuple(item.storage_index.offset or ())
        chunks = self.index.tensors[item.storage_index.fqn].chunks
        return next(chunk for chunk in chunks if chunk.offsets == offsets)

    def _read(self, file: Any, item: ReadItem, planner: LoadPlanner) -> None:
        chunk = self._chunk(item)
        name = piece_name(item.storage_index.fqn, chunk.offsets)
        target = planner.resolve_tensor(item)
        if tuple(item.lengths) == chunk.sizes:
            numbers = file.get_tensor(name)
        else:
            box = zip(item.storage_offsets, item.lengths, strict=True)
            numbers = file.get_slice(name)[tuple(slice(b, b + n) for b, n in box)]
        if numbers.shape != target.shape:
            raise InputError(f"{self.folder}: is corrupt: {chunk.file}: {name} has another shape")
        target.copy_(numbers)
        planner.commit_tensor(item, target)


def _shared_out(items: Iterable[WriteItem]) -> list[list[WriteItem]]:
    """Share boxes out to files of at most `_FILE_BYTES`, or one box."""
    files: list[list[WriteItem]] = []
    filled = 0
    for item in items:
        size_bytes = _size_bytes(item)
        if not files or filled + size_bytes > _FILE_BYTES:
            files.append([])
            filled = 0
        files[-1].append(item)
        filled += size_bytes
    return files


def _size_bytes(item: WriteItem) -> int:
    assert item.tensor_data is not None, f"{item.index.fqn} is no tensor"
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _index(progress: Progress, metadata: Metadata, results: Iterable[WriteResult]) -> Index:
    written = {(item.index.fqn, tuple(item.index.offset or ())): item for item in results}
    tensors = {}
    for key, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), f"{key} is no tensor"
        chunks = []
        for chunk in entry.chunks:
            offsets = tuple(chunk.offsets)
            file = written[key, offsets].storage_data.file
            chunks.append(Chunk(offsets=offsets, sizes=tuple(chunk.sizes), file=file))
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        tensors[key] = TensorEntry(dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks))
    files = {item.storage_data.file: item.storage_data.entry for item in written.values()}
    return Index(progress=progress, files=files, tensors=tensors)


def _metadata(entry: TensorEntry) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, entry.dtype)),
        size=torch.Size(entry.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(item.offsets), sizes=torch.Size(item.sizes))
            for item in entry.chunks
        ],
    )
