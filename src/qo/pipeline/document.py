"""Parses a file into plain data with the position of each value.

JSON is YAML, so both are read here. Small files that expand without bound (a hundred thousand brackets, aliases of
aliases of aliases) hit the limits below while they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from qo.pipeline.problems import Document, Report, Spot
from qo.pipeline.scalars import Ambiguous, scalar

TEXT_CHARS_MAX = 8_000_000
DEPTH_MAX = 64
NODES_MAX = 400_000  # With every alias counted as all the values that it repeats.
ALIASES_MAX = 1_000

_YAML: Any = yaml  # Its stubs lack types.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ESCAPES = re.compile(
    r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\\\\|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)


def parse(text: str, report: Report) -> Document | None:
    """Parse one YAML or JSON document of plain data. Problems are added to the report; None if it cannot be read at
    all."""
    if len(text) > TEXT_CHARS_MAX:
        report.add((), f"the file has more than {TEXT_CHARS_MAX} characters", "split the pipeline into several")
        return None
    builder = _Builder(report.spot.file, report)
    try:
        for event in _YAML.parse(_as_yaml(text), Loader=_LOADER):
            builder.take(event)
    except _Stopped:
        return None  # The report has the reason.
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        _report_unreadable(error, text, report)
        return None
    if builder.root is None:
        report.add((), "the file is empty", "begin with 'name:' and 'jobs:'")
        return None
    report.spot = builder.root[1]
    return Document(*builder.root, text)


def _as_yaml(text: str) -> str:
    """Return JSON as YAML: join pairs of surrogate escapes, and escape characters that YAML does not allow."""
    if text.lstrip()[:1] not in ("{", "["):
        return text

    def replacement(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00)
        # Either an escaped backslash, or a character that YAML refuses or takes for the end of a line.
        return match[0] if match[0] == "\\\\" else f"\\u{ord(match[0]):04x}"

    return _ESCAPES.sub(replacement, text)


def _report_unreadable(error: yaml.YAMLError | UnicodeEncodeError, text: str, report: Report) -> None:
    mark: Any = getattr(error, "problem_mark", None)
    if mark is not None:
        spot = Spot(report.spot.file, mark.line + 1, mark.column + 1)
        problem: str = getattr(error, "problem", None) or "it cannot be read"
        report.add_at(spot, f"this is not YAML: {problem}", "check the indentation, colons, brackets and quotes")
        return
    offset = error.start if isinstance(error, UnicodeEncodeError) else int(getattr(error, "position", None) or 0)
    before = text[:offset]
    spot = Spot(report.spot.file, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)
    report.add_at(spot, "there is a character that YAML does not allow", "remove it, or escape it within quotes")


class _Stopped(Exception):
    """Parsing was aborted; the report has the reason."""


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read."""

    value: dict[str, Any] | list[Any]
    spot: Spot
    anchor: str | None
    nodes: int  # How many nodes had been read before it.
    key: str | None = None  # In a mapping: the key whose value comes next.
    wants_key: bool = True


@dataclass(slots=True)
class _Builder:
    file: str
    report: Report
    root: tuple[Any, Spot] | None = None
    stack: list[_Open] = field(default_factory=list[_Open])
    anchors: dict[str, tuple[Any, Spot, int]] = field(default_factory=dict[str, "tuple[Any, Spot, int]"])
    nodes: int = 0
    aliases: int = 0

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                closed = self.stack.pop()
                if closed.anchor is not None:
                    self.anchors[closed.anchor] = (closed.value, closed.spot, self.nodes - closed.nodes)
                self._append(closed.value, closed.spot)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.DocumentStartEvent() if self.root is not None:
                hint = "write each pipeline to a file of its own, and remove the '---'"
                self._stop(self._spot(event), "there is a second document in the file", hint)
            case _:
                pass

    def _spot(self, event: Any) -> Spot:
        return Spot(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _count(self, spot: Spot, more: int = 1) -> None:
        self.nodes += more
        if self.nodes > NODES_MAX:
            hint = "split the pipeline into several, or write fewer aliases"
            self._stop(spot, f"the document has more than {NODES_MAX} values", hint)

    def _stop(self, spot: Spot, message: str, hint: str) -> None:
        self.report.add_at(spot, message, hint)
        raise _Stopped

    def _scalar(self, event: Any) -> None:
        spot = self._spot(event)
        self._count(spot)
        self._refuse_tag(event, spot)
        value: Any = event.value
        if event.implicit[0]:
            try:
                value = scalar(event.value)
            except Ambiguous as ambiguous:
                self.report.add_unreadable(spot, *ambiguous.args)
                value = event.value  # Continue, to find what else is wrong.
        if "\0" in event.value:
            self.report.add_at(spot, "there is a NUL character in the text", "remove it")
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, spot, 1)
        self._append(value, spot)

    def _open(self, event: Any) -> None:
        spot = self._spot(event)
        spot.parts, spot.keys = {}, {}
        self._count(spot)
        self._refuse_tag(event, spot)
        if len(self.stack) >= DEPTH_MAX:
            self._stop(spot, f"values are nested more than {DEPTH_MAX} deep", "write a flatter document")
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.wants_key:
            self._stop(spot, "the name of a field must be text", "write one word in front of the colon")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Open(value, spot, event.anchor, self.nodes))

    def _alias(self, event: Any) -> None:
        spot = self._spot(event)
        self.aliases += 1
        if self.aliases > ALIASES_MAX:
            self._stop(spot, f"there are more than {ALIASES_MAX} aliases", "write the values out")
        if event.anchor not in self.anchors:
            self._stop(spot, f"there is no finished value named &{event.anchor} above", "write the value out")
        value, where, nodes = self.anchors[event.anchor]
        self._count(spot, nodes)
        self._append(value, where)

    def _refuse_tag(self, event: Any, spot: Spot) -> None:
        if event.tag is not None:
            self.report.add_at(
                spot, f"the tag {event.tag[:60]!r} is not supported", "remove it, and put text in quotes"
            )

    def _append(self, value: Any, spot: Spot) -> None:
        if not self.stack:
            self.root = (value, spot)
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.spot.parts[len(top.value)] = spot
            top.value.append(value)
        elif top.wants_key:
            self._key(top, value, spot)
        else:
            top.wants_key = True
            if top.key is not None:
                top.value[top.key] = value
                top.spot.parts[top.key] = spot

    def _key(self, top: _Open, value: Any, spot: Spot) -> None:
        top.wants_key, top.key = False, None
        if not isinstance(value, str):
            self.report.add_at(spot, "the name of a field must be text", "put it in quotes")
        elif value in top.spot.keys:
            line = top.spot.keys[value].line
            self.report.add_at(spot, f"{value[:80]!r} is written twice (first on line {line})", "keep one of them")
        else:
            top.key = value
            top.spot.keys[value] = spot


def plain(value: Any, report: Report) -> Document:
    """Copy Python data into the form that a file would give. Values that no file can hold are reported."""
    return Document(_copy(value, (), report), report.spot)


def _copy(value: Any, path: tuple[str | int, ...], report: Report) -> Any:
    if len(path) > DEPTH_MAX:
        report.add(path, f"values are nested more than {DEPTH_MAX} deep", "write a flatter document")
        return None
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        for key in members:
            if not isinstance(key, str):
                report.add(path, f"the name {key!r} of a field is not text", "write it as text")
        return {str(key): _copy(part, (*path, str(key)), report) for key, part in members.items()}
    if isinstance(value, list | tuple):
        parts = cast("list[Any]", value)
        return [_copy(part, (*path, index), report) for index, part in enumerate(parts)]
    if isinstance(value, str):
        text = str.__str__(value)
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
            report.add(path, "there is a character that cannot be stored", "remove it")
        return text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value, path, report)
    report.add(path, f"a {type(value).__name__} cannot be written to a file", "use text, numbers, lists and dicts")
    return None


def _number(value: int | float, path: tuple[str | int, ...], report: Report) -> int | float:
    try:
        back = scalar(repr(value + 0))
    except Ambiguous as ambiguous:
        report.add(path, *ambiguous.args)
        return 0
    if isinstance(back, int | float):
        return back
    report.add(path, f"{value!r} is not a number that can be stored", "write a finite number")
    return 0
