"""Profile files: times of operators on one kind of device, measured or modelled, as JSON.

A profile replaces the device model for the operators that it holds, and only for them.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spindle_sim.errors import InputError, Problem
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.workload import Operator

__all__ = [
    "PROFILE_VERSION",
    "LinkPoint",
    "OperatorPoint",
    "OptimizerPoint",
    "Profile",
    "ProfileProvenance",
    "ProfiledOperator",
    "dump_profile",
    "load_profile",
    "parse_profile",
    "profile_schema",
    "save_profile",
]

PROFILE_VERSION = "1.1"
_READ_VERSIONS = ("1.0", "1.1")  # 1.1 added the optimizer step and the width of elements
_MAX_VALUE_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProvenance:
    """On what the times were taken, when, how, and by what."""

    device: str
    source: str
    date: str  # YYYY-MM-DD
    kind: Literal["measured", "modelled"]
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """Times of one operator for `samples` items on one device (or one of `tp` ranks).

    `backward_s` gives the gradients of input and weights; the parts apart, where known. No time
    includes recomputation, or the collectives of tensor parallelism.
    """

    samples: float
    forward_s: float
    backward_s: float
    input_backward_s: float | None = None
    weight_backward_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperator:
    """An operator's signature (kind and dimensions, tokens, tp) and its points.

    `batch_size` matters only to operators that meet the whole global batch (contrastive losses).
    """

    operator: Operator
    tokens: int
    context_tokens: int = 0
    tp: int = 1
    batch_size: int | None = None
    points: tuple[OperatorPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """The time of one transfer or collective among `ranks`; an all-gather's size: its result's."""

    operation: Literal["transfer", "all_reduce", "all_gather"]
    reach: Literal["island", "network"]
    ranks: int
    size_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPoint:
    """The time of one optimizer step over so many parameters of one device."""

    parameters: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A whole profile file; sizes of `links` are those of elements of `element_bytes`."""

    format_version: str
    name: str
    provenance: ProfileProvenance
    operators: tuple[ProfiledOperator, ...]
    links: tuple[LinkPoint, ...] = ()
    optimizer: tuple[OptimizerPoint, ...] = ()
    element_bytes: float = 2.0

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(dump_profile(self).encode()).hexdigest()


def load_profile(path: Path | str) -> Profile:
    """Read a profile file.

    Raises:
        InputError: the file can't be read, or isn't a valid profile; with every problem found.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "isn't UTF-8 text"
        message = f"can't be read: {str(reason).lower()}; name a profile file (JSON)"
        raise InputError(Problem(source=str(path), message=message)) from error
    return parse_profile(text, str(path))


def parse_profile(text: str, source: str) -> Profile:
    """Give the profile in `text`.

    Raises:
        InputError: it isn't a valid profile; with every problem found.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(source=source, message=f"is no JSON: {error}")) from error
    if isinstance(raw, dict) and {"slices", "metaops"} <= raw.keys():
        message = "is a plan, not a profile: `spindle profile -o` writes those"
        raise InputError(Problem(source=source, message=message))
    found = raw.get("format_version") if isinstance(raw, dict) else None
    if found not in _READ_VERSIONS:
        message = f'is {_shown(found)}; this program reads "{PROFILE_VERSION}"'
        raise InputError(Problem(source=source, path="format_version", message=message))
    try:
        profile = _adapter().validate_json(f"[{text}]", strict=True)[0]
    except ValidationError as error:
        raise InputError(*_shape_problems(error, source)) from error
    except InputError as error:  # an operator's own check
        problems = [Problem(source=source, message=item.message) for item in error.problems]
        raise InputError(*problems) from error
    if problems := list(_rule_problems(profile, source)):
        raise InputError(*problems)
    return profile


def dump_profile(profile: Profile) -> str:
    """Give the canonical JSON of a profile: 16 and 16.0 samples are written alike."""
    read = _adapter().validate_json(json.dumps([asdict(profile)]))[0]
    return json.dumps(asdict(read), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write a profile file, whole or not at all."""
    write_atomically(path, dump_profile(profile).encode())


def profile_schema() -> dict[str, Any]:
    """Give the JSON Schema of a profile file."""
    schema = _adapter().json_schema()
    definitions = schema["$defs"]
    profile = definitions.pop("Profile")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **profile,
        "title": f"Spindle profile, format {PROFILE_VERSION}",
        "$defs": definitions,
    }


@cache
def _adapter() -> TypeAdapter[tuple[Profile, ...]]:
    # A tuple, since pydantic hands a config down to plain dataclasses only from around them.
    config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
    return TypeAdapter(tuple[Profile, ...], config=config)


def _shape_problems(error: ValidationError, source: str) -> Iterable[Problem]:
    for item in error.errors(include_url=False, include_context=False):
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in item["loc"][1:])
        message = "is missing"
        if item["type"] != "missing":
            message = f"{item['msg'][:1].lower()}{item['msg'][1:]}, not {_shown(item['input'])}"
        yield Problem(source=source, path=path.removeprefix("."), message=message)


def _rule_problems(profile: Profile, source: str) -> Iterable[Problem]:
    seen: set[object] = set()
    for index, item in enumerate(profile.operators):
        path = f"operators[{index}]"
        signature = (item.operator, item.tokens, item.context_tokens, item.tp, item.batch_size)
        if signature in seen:
            yield Problem(source=source, path=path, message="is given twice; join their points")
        seen.add(signature)
        if min(item.tokens, item.tp) < 1 or item.context_tokens < 0:
            message = "tokens and tp must be at least 1, context_tokens not negative"
            yield Problem(source=source, path=path, message=message)
        if not item.points:
            yield Problem(source=source, path=f"{path}.points", message="needs at least one point")
        for place, point in enumerate(item.points):
            numbers = (value for value in asdict(point).values() if value is not None)
            if min(numbers) <= 0:
                message = "samples and every time must be positive"
                yield Problem(source=source, path=f"{path}.points[{place}]", message=message)
    yield from _other_problems(profile, source)


def _other_problems(profile: Profile, source: str) -> Iterable[Problem]:
    for index, link in enumerate(profile.links):
        if min(link.ranks, link.size_bytes, link.time_s) <= 0:
            message = "ranks, size_bytes and time_s must be positive"
            yield Problem(source=source, path=f"links[{index}]", message=message)
    for index, step in enumerate(profile.optimizer):
        if min(step.parameters, step.time_s) <= 0:
            message = "parameters and time_s must be positive"
            yield Problem(source=source, path=f"optimizer[{index}]", message=message)
    if profile.element_bytes <= 0:
        yield Problem(source=source, path="element_bytes", message="must be positive")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."
