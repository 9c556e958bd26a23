"""A YAML file as plain data, with the line of every field; wrong files become `InputError`s.

Scalars are those of YAML 1.2: `1e9` is a number, `no` a string. Duplicate keys, files that are
too large or too deep, and numbers that no quantity here can have are refused.
"""

import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from spindle_sim.errors import InputError, Problem

__all__ = ["FieldPath", "YamlFile", "dotted", "read_yaml", "refuse_other_kind"]

FieldPath = tuple[str | int, ...]

MAX_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 100_000  # aliases counted as what they stand for
MAX_INTEGER = 10**15

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 400
_TAGS = {None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """What a file holds, and where in it each field stands."""

    source: str
    data: object
    lines: Mapping[FieldPath, int]  # counted from 1
    problems: tuple[Problem, ...] = ()  # mistakes that leave the rest readable

    def problem(self, path: FieldPath, message: str) -> Problem:
        """Give a problem at a field, with its line or that of the nearest field around it."""
        known = (path[:length] for length in range(len(path), -1, -1))
        line = next((self.lines[part] for part in known if part in self.lines), None)
        return Problem(message=message, source=self.source, line=line, path=dotted(path))


def dotted(path: FieldPath) -> str:
    """Give a field's path as people write it: "tasks[0].flows[1].source"."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def read_yaml(path: str | Path) -> YamlFile:
    """Read a file that holds one YAML mapping; whoever checks its fields reports its `problems`.

    Raises:
        InputError: there is no such file, or it can't be read as that.
    """
    source = str(path)
    text = _read_text(Path(path), source)
    builder = _Builder(source=source, lines={}, problems=[], anchors={})
    try:
        data = builder.document(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not YAML: {error.problem or error.context}"
        line = mark.line + 1 if mark else None
        raise InputError(Problem(source=source, line=line, message=message)) from error
    except yaml.YAMLError as error:
        message = f"not YAML: {' '.join(str(error).split())}"
        raise InputError(Problem(source=source, message=message)) from error
    return YamlFile(source=source, data=data, lines=builder.lines, problems=tuple(builder.problems))


def refuse_other_kind(file: YamlFile, *, own: Set[str], other: Set[str], message: str) -> None:
    """Refuse a file that has fields of another kind of file, and none of its own kind.

    Its fields one by one would be a list of mistakes that nobody made.

    Raises:
        InputError: it is of the other kind, and `message` says which.
    """
    fields = file.data.keys() if isinstance(file.data, dict) else set[str]()
    if fields & other and not fields & own:
        raise InputError(Problem(source=file.source, message=message))


def _read_text(path: Path, source: str) -> str:
    try:
        if path.is_dir():
            raise InputError(Problem(source=source, message="is a directory, not a file"))
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(Problem(source=source, message="no such file")) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, but also InputError
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem(source=source, message=f"can't be read: {reason}")) from error
    if len(raw) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 2**20} MiB, which no such file needs"
        raise InputError(Problem(source=source, message=message))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte {error.start})"
        raise InputError(Problem(source=source, line=line, message=message)) from error


@dataclass(slots=True, kw_only=True)  # lives for one file, gathers its lines and problems
class _Builder:
    """Builds data from YAML events, so that depth and size are known before anything is made."""

    source: str
    lines: dict[FieldPath, int]
    problems: list[Problem]
    anchors: dict[str, tuple[object, int]]  # what an anchor stands for, and its number of nodes
    nodes: int = 0

    def document(self, text: str) -> object:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        events = yaml.parse(text, Loader=loader)
        data: object = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, (), "holds more than one document; keep one a file")
                data = self._node(next(events), events, ())
        if data is None:
            raise InputError(Problem(source=self.source, message="is empty"))
        if not isinstance(data, dict):
            found = "a list" if isinstance(data, list) else f"the single value {data!r:.60}"
            message = f"expected fields such as 'name: ...', found {found}"
            raise InputError(Problem(source=self.source, line=1, message=message))
        return data

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], path: FieldPath) -> object:
        if len(path) > MAX_DEPTH:
            self._refuse(event, path[:3], f"is nested more than {MAX_DEPTH} levels deep")
        self._count(event, 1)
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent), event
        before = self.nodes
        if event.tag not in _TAGS:
            self._note(event, path, f"the tag {event.tag!r} is not supported")
        if isinstance(event, yaml.MappingStartEvent):
            data: object = self._mapping(events, path)
        elif isinstance(event, yaml.ScalarEvent):
            data = self._scalar(event, path)
        else:
            data = self._sequence(events, path)
        if event.anchor:
            self.anchors[event.anchor] = data, self.nodes - before + 1
        return data

    def _mapping(self, events: Iterator[yaml.Event], path: FieldPath) -> dict[str, object]:
        data: dict[str, object] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, path, "a field's name must be one word")
            key = event.value
            here = (*path, key)
            if key in data:
                first = self.lines[here]
                self._note(event, here, f"is given twice, first on line {first}; keep one")
                self._node(next(events), events, (*path, f"{key} (again)"))
                continue
            self.lines[here] = _line(event)
            data[key] = self._node(next(events), events, here)
        return data

    def _sequence(self, events: Iterator[yaml.Event], path: FieldPath) -> list[object]:
        data: list[object] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            data.append(self._node(event, events, (*path, len(data))))
        return data

    def _alias(self, event: yaml.AliasEvent, path: FieldPath) -> object:
        known = self.anchors.get(event.anchor or "")
        if known is None:
            self._refuse(event, path, f"*{event.anchor} stands for nothing whole before it")
        data, nodes = known
        self._count(event, nodes)
        return data

    def _scalar(self, event: yaml.ScalarEvent, path: FieldPath) -> object:
        text: str = event.value
        if not event.implicit[0] or event.tag is not None:
            return text  # quoted, or !!str
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text.lower() == "true"
        if _NOT_FINITE.fullmatch(text):
            self._note(event, path, f"{text} is no number that can be used here")
        elif len(text) <= _MAX_DIGITS and _INTEGER.fullmatch(text):
            return self._bounded(event, path, int(text))
        elif _FLOAT.fullmatch(text):
            return self._bounded(event, path, float(text))
        return text

    def _bounded(self, event: yaml.ScalarEvent, path: FieldPath, number: float) -> float:
        too_large = not math.isfinite(number)
        if isinstance(number, int):
            too_large = abs(number) > MAX_INTEGER
        if too_large:
            self._note(event, path, f"{event.value:.30} is too large")
        return number

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            message = f"holds more than {MAX_NODES:,} values, aliases counted in full"
            self._refuse(event, (), message)

    def _note(self, event: yaml.Event, path: FieldPath, message: str) -> None:
        place = dotted(path)
        self.problems.append(
            Problem(source=self.source, line=_line(event), path=place, message=message)
        )

    def _refuse(self, event: yaml.Event, path: FieldPath, message: str) -> NoReturn:
        self._note(event, path, message)
        raise InputError(*self.problems)


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else mark.line + 1
