"""The index of a checkpoint (JSON): which tensor lies where, how far the run is; no torch.

docs/checkpoints.md describes the format.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import pydantic
from pydantic import TypeAdapter

from spindle_sim.errors import InputError

__all__ = [
    "ASIDE_NAME",
    "Chunk",
    "Cursor",
    "FileEntry",
    "Index",
    "Progress",
    "TensorEntry",
    "dump_index",
    "parse_index",
    "piece_name",
]

ASIDE_NAME = re.compile(r"aside-[0-9]+-[0-9a-f]{12}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]+\.safetensors")
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_DTYPES = {*_FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How much of a task's data has been read: global batches, and the samples in them."""

    batches: int = 0
    samples: int = 0

    def advanced(self, batches: int, batch_size: int) -> "Cursor":
        """Give the place after some batches of one size."""
        return Cursor(batches=self.batches + batches, samples=self.samples + batches * batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: `step` training steps are done.

    `cursors` has every task that ever ran. `aside` names the folder beside this one with what
    earlier plans trained and this one's doesn't have.
    """

    step: int
    seed: int
    dtype: str
    cursors: Mapping[str, Cursor]
    aside: str | None = None

    def __post_init__(self) -> None:
        """Check what a file could have wrong."""
        if self.step < 0 or any(min(c.batches, c.samples) < 0 for c in self.cursors.values()):
            raise InputError("its step or a cursor is below 0")
        if self.aside is not None and not ASIDE_NAME.fullmatch(self.aside):
            raise InputError(f"aside is {self.aside!r:.60}, which is no folder of a checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """What a file must be, to the byte."""

    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Check the form of the hash."""
        if not _SHA256.fullmatch(self.sha256):
            raise InputError(f"{self.sha256!r:.80} is no SHA-256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A box of a tensor, and the file that has it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A whole tensor, as boxes that cover it."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        """Check the dtype, and that the boxes lie within the tensor and are as large as it."""
        if self.dtype not in _DTYPES:
            raise InputError(f"{self.dtype!r:.60} is no dtype of a checkpoint")
        for chunk in self.chunks:
            if not len(chunk.offsets) == len(chunk.sizes) == len(self.shape) or any(
                not 0 <= begin <= begin + size <= whole
                for begin, size, whole in zip(chunk.offsets, chunk.sizes, self.shape, strict=False)
            ):
                raise InputError(f"a tensor of shape {self.shape} has a box outside of it")
        if sum(math.prod(chunk.sizes) for chunk in self.chunks) != math.prod(self.shape):
            raise InputError(f"the boxes of a tensor of shape {self.shape} don't fill it")
        if self.shape and _overlap(self.chunks):
            raise InputError(f"boxes of a tensor of shape {self.shape} overlap, so don't fill it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Everything about a checkpoint but its numbers; `digest` is that of all the rest."""

    format: Literal["spindle-checkpoint"] = "spindle-checkpoint"
    version: Literal["1.0"] = "1.0"
    progress: Progress
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    digest: str = ""

    def __post_init__(self) -> None:
        """Check that the files are plain names, and all there that tensors lie in."""
        odd = next((name for name in self.files if not _FILE_NAME.fullmatch(name)), None)
        if odd is not None:
            raise InputError(f"{odd!r:.60} is no file of a checkpoint")
        for key, entry in self.tensors.items():
            if any(chunk.file not in self.files for chunk in entry.chunks):
                raise InputError(f"{key}: lies in a file that isn't listed")

    def sealed(self) -> "Index":
        """Give the index with its digest."""
        return replace(self, digest=_digest(self))


def piece_name(key: str, offsets: tuple[int, ...]) -> str:
    """Give the name of a box within its file: the key itself where the box is the first."""
    return f"{key}@{','.join(map(str, offsets))}" if any(offsets) else key


def dump_index(index: Index) -> str:
    """Give the index as a JSON object; the same index gives the same text."""
    return json.dumps(asdict(index.sealed()), sort_keys=True, allow_nan=False) + "\n"


def parse_index(text: bytes, source: str) -> Index:
    """Give the index back.

    Raises:
        InputError: it is no index, not whole, or contradicts itself: one line.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError, too
        raise InputError(f"{source}: is no checkpoint of spindle: its index isn't JSON") from error
    if not isinstance(document, dict) or document.get("format") != "spindle-checkpoint":
        raise InputError(f"{source}: is no checkpoint of spindle")
    if document.get("version") != "1.0":
        raise InputError(
            f"{source}: has version {document.get('version')!r:.20} of the format; this reads 1.0"
        )
    try:
        index = TypeAdapter(Index).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{source}: is corrupt: {place}: {reason}") from error
    if index.digest != _digest(index):
        raise InputError(f"{source}: is corrupt: its index isn't what was written")
    return index


def _overlap(chunks: Sequence[Chunk]) -> bool:
    """Tell whether two boxes have a number in common; most are apart in the first dimension."""
    ends: list[Chunk] = []  # of those that may reach as far as the next one begins
    for chunk in sorted((item for item in chunks if math.prod(item.sizes)), key=_begin):
        ends = [item for item in ends if item.offsets[0] + item.sizes[0] > chunk.offsets[0]]
        if any(_meet(chunk, item) for item in ends):
            return True
        ends.append(chunk)
    return False


def _begin(chunk: Chunk) -> tuple[int, ...]:
    return chunk.offsets


def _meet(chunk: Chunk, other: Chunk) -> bool:
    places = zip(chunk.offsets, chunk.sizes, other.offsets, other.sizes, strict=True)
    return all(begin < start + long and start < begin + size for begin, size, start, long in places)


def _digest(index: Index) -> str:
    document = asdict(replace(index, digest=""))
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
