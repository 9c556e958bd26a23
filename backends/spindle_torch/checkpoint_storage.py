"""Checkpoints on a file system: safetensors and a JSON index.

torch's own storage keeps its metadata as a pickle, which can run code when it is loaded
(docs/decisions/017-checkpoints-without-pickle.md).
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from torch.distributed.checkpoint.planner import ReadItem, WriteItem

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

__all__ = ["FolderReader", "FolderWriter", "Written"]

_FILE_BYTES = 2**28  # of numbers in one file: they are in memory twice while it is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that a rank wrote: its boxes, by key and where they begin."""

    file: str
    entry: FileEntry
    boxes: tuple[tuple[str, tuple[int, ...]], ...]


class FolderWriter:
    """Writes one checkpoint to a folder that doesn't exist before it is whole."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.unfinished = folder.with_name(folder.name + ".tmp")
        self.progress = progress

    def begin(self) -> None:
        """Make the folder: on one rank, before any writes.

        Raises:
            UsageError: it can't be made.
        """
        self.unfinished = begin_writing(self.folder)

    def write(
        self,
        rank: int,
        items: Iterable[WriteItem],
        numbers: Callable[[WriteItem], torch.Tensor],
    ) -> tuple[Written, ...]:
        """Write a rank's boxes into files of its own.

        Raises:
            ExecutionError: the file system doesn't take them.
        """
        written: list[Written] = []
        for number, share in enumerate(_shared_out(items)):
            name = f"part-{rank:05d}-{number:05d}.safetensors"
            try:
                entry = self._write_file(name, share, numbers)
            except OSError as error:
                raise ExecutionError(
                    f"{self.unfinished / name}: can't be written: {os.strerror(error.errno or 0)}"
                ) from error
            boxes = tuple((item.index.fqn, tuple(item.index.offset or ())) for item in share)
            written.append(Written(file=name, entry=entry, boxes=boxes))
        return tuple(written)

    def finish(self, metadata: Metadata, files: Iterable[Written]) -> None:
        """Write the index last, and give the folder its name: on one rank.

        Raises:
            ExecutionError: the file system doesn't take it.
        """
        index = _index(self.progress, metadata, tuple(files))
        try:
            _write_through(self.unfinished / INDEX_NAME, dump_index(index).encode())
            commit(self.unfinished)
        except OSError as error:
            raise ExecutionError(
                f"{self.folder}: can't be written: {os.strerror(error.errno or 0)}"
            ) from error

    def _write_file(
        self,
        name: str,
        items: Iterable[WriteItem],
        numbers: Callable[[WriteItem], torch.Tensor],
    ) -> FileEntry:
        tensors = {}
        for item in items:
            offsets = tuple(item.index.offset or ())
            # A copy: a view would be written with all of the storage behind it.
            own = numbers(item).detach().cpu().clone(memory_format=torch.contiguous_format)
            tensors[piece_name(item.index.fqn, offsets)] = own
        content = save(tensors)
        _write_through(self.unfinished / name, content)
        return FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class FolderReader:
    """Reads one checkpoint, whose index was read before."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index

    @property
    def metadata(self) -> Metadata:
        """Give what was written, as torch has it."""
        return Metadata({key: _metadata(entry) for key, entry in self.index.tensors.items()})

    def read(self, items: Iterable[ReadItem], place: Callable[[ReadItem], torch.Tensor]) -> None:
        """Read numbers into their places, a file after the other.

        Raises:
            InputError: a file hasn't what the index says.
        """
        by_file: dict[str, list[ReadItem]] = {}
        for item in items:
            by_file.setdefault(self._chunk(item).file, []).append(item)
        for name, own in by_file.items():
            try:
                with safe_open(self.folder / name, framework="pt") as file:
                    for item in own:
                        self._read(file, item, place(item))
            except (SafetensorError, OSError) as error:
                raise InputError(f"{self.folder}: is corrupt: {name}: {error}") from error

    def _chunk(self, item: ReadItem) -> Chunk:
        offsets = tuple(item.storage_index.offset or ())
        chunks = self.index.tensors[item.storage_index.fqn].chunks
        return next(chunk for chunk in chunks if chunk.offsets == offsets)

    def _read(self, file: Any, item: ReadItem, target: torch.Tensor) -> None:
        chunk = self._chunk(item)
        name = piece_name(item.storage_index.fqn, chunk.offsets)
        if tuple(item.lengths) == chunk.sizes:
            numbers = file.get_tensor(name)
        else:
            box = zip(item.storage_offsets, item.lengths, strict=True)
            numbers = file.get_slice(name)[tuple(slice(b, b + n) for b, n in box)]
        if numbers.shape != target.shape:
            raise InputError(f"{self.folder}: is corrupt: {chunk.file}: {name} has another shape")
        target.copy_(numbers)


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


def _index(progress: Progress, metadata: Metadata, written: Iterable[Written]) -> Index:
    written = tuple(written)
    files = {box: item.file for item in written for box in item.boxes}
    tensors = {}
    for key, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), f"{key} is no tensor"
        chunks = []
        for chunk in entry.chunks:
            offsets = tuple(chunk.offsets)
            file = files[key, offsets]
            chunks.append(Chunk(offsets=offsets, sizes=tuple(chunk.sizes), file=file))
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        tensors[key] = TensorEntry(dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks))
    entries = {item.file: item.entry for item in written}
    return Index(progress=progress, files=entries, tensors=tensors)


def _metadata(entry: TensorEntry) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, entry.dtype)),
        size=torch.Size(entry.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(item.offsets), sizes=torch.Size(item.sizes))
            for item in entry.chunks
        ],
    )
