"""Checks that values have the kinds that the table of fields declares."""

from __future__ import annotations

from typing import Any, assert_never, cast

import msgspec

from qo.core.pipeline.dag import SourceKind
from qo.core.words import with_article
from qo.pipeline.kinds import (
    Anything,
    Choice,
    Field,
    Filter,
    Flag,
    Items,
    Kind,
    Record,
    Scalar,
    Table,
    Text,
    Whole,
)
from qo.pipeline.problems import Path, Report, closest, quote_value


def check(value: Any, kind: Kind, path: Path, report: Report) -> bool:
    """Report values that are not of their kind. Return whether all are, here and below."""
    if report.full:
        return False
    match kind:
        case Record():
            return _record(value, kind, path, report)
        case Items():
            return _items(value, kind, path, report)
        case Table():
            return _table(value, kind, path, report)
        case Filter():
            return _filter(value, kind, path, report)
        case Anything():
            return _anything(value, kind, path, report)
        case Text() | Whole() | Flag() | Choice() | Scalar():
            return _scalar(value, kind, path, report)
        case _:
            assert_never(kind)


def _record(value: Any, kind: Record, path: Path, report: Report) -> bool:
    if not isinstance(value, dict):
        names = ", ".join(field.name for field in kind.fields[:4])
        return _reject(
            path, report, f"{_label(path)} is {quote_value(value)}", f"write a mapping with fields such as {names}"
        )
    members = cast("dict[str, Any]", value)
    is_valid = True
    for key, part in members.items():
        if report.full:
            return False
        field = kind.by_name.get(key)
        if field is not None:
            is_valid &= check(part, field.kind, (*path, key), report)
        else:
            is_valid = _report_unknown(key, kind, path, report)
    for field in kind.fields:
        if field.required and field.name not in members:
            is_valid = _reject(
                path, report, f"{_owner(path, members)} has no {field.name!r}", f"write {_example(field)}"
            )
    if kind.one_of and sum(name in members for name in kind.one_of) != 1:
        *most, last = map(repr, kind.one_of)
        message = f"{_label(path)} needs either {', '.join(most)} or {last}"
        is_valid = _reject(path, report, message, "write exactly one of them")
    return is_valid


def _report_unknown(key: str, kind: Record, path: Path, report: Report) -> bool:
    hint = kind.removed_hints.get(key) or closest(key, kind.by_name, otherwise="remove it, or write one of")
    report.add((*path, key), f"there is no field {key[:80]!r} in {with_article(kind.name)}", hint, key=True)
    return False


def _example(field: Field) -> str:
    match field.kind:
        case Choice(values):
            return f"'{field.name}: {' | '.join(values)}'"
        case Whole(at_least, at_most):
            return f"'{field.name}:' with a whole number from {at_least} to {at_most}"
        case Record() | Table() | Anything():
            return f"'{field.name}:' with a mapping below it"
        case Items():
            return f"'{field.name}:' with a list below it"
        case _:
            return f"'{field.name}: ...'"


def _items(value: Any, kind: Items, path: Path, report: Report) -> bool:
    if not isinstance(value, list):
        return _reject(
            path, report, f"{_label(path)} is {quote_value(value)}", "write a list: '- ' before each item"
        )
    parts = cast("list[Any]", value)
    if not kind.at_least <= len(parts) <= kind.at_most:
        message = f"{_label(path)} has {len(parts)} items"
        return _reject(path, report, message, f"write {kind.at_least} to {kind.at_most}")
    is_valid = True
    for index, part in enumerate(parts):
        is_valid &= check(part, kind.of, (*path, index), report)
    if kind.unique and is_valid:
        for index, part in enumerate(parts):
            if part in parts[:index]:
                is_valid = _reject(
                    (*path, index), report, f"{quote_value(part)} stands twice in {_label(path)}", "keep one"
                )
    return is_valid


def _table(value: Any, kind: Table, path: Path, report: Report) -> bool:
    if not isinstance(value, dict):
        return _reject(
            path, report, f"{_label(path)} is {quote_value(value)}", "write a mapping: 'name: ...' on each line"
        )
    members = cast("dict[str, Any]", value)
    if len(members) > kind.at_most:
        return _reject(path, report, f"{_label(path)} has {len(members)} entries", f"write at most {kind.at_most}")
    is_valid = True
    for key, part in members.items():
        if len(key) > kind.keys.chars_max or not kind.keys.matcher.match(key):
            message = f"{key[:80]!r} is not a name for an entry of {_label(path)}"
            report.add((*path, key), message, f"write {kind.keys.form}", key=True)
            is_valid = False
        is_valid &= check(part, kind.of, (*path, key), report)
    return is_valid


def _filter(value: Any, kind: Filter, path: Path, report: Report) -> bool:
    listed = isinstance(value, list)
    values = cast("list[Any]", value) if listed else [value]
    if listed and not 1 <= len(values) <= kind.at_most:
        return _reject(path, report, f"{_label(path)} has {len(values)} values", f"write 1 to {kind.at_most}")
    types = {_type_name(each) for each in values}
    if None in types:
        hint = "write text, a number, true or false, or a list of them"
        return _reject(path, report, f"{_label(path)} cannot be compared with {quote_value(value)}", hint)
    if len(types) > 1:
        hint = "write values of one type, in quotes where text is meant"
        return _reject(path, report, f"{_label(path)} mixes {' and '.join(sorted(map(str, types)))}", hint)
    return True


def _type_name(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers"
    return "text" if isinstance(value, str) else None


def _anything(value: Any, kind: Anything, path: Path, report: Report) -> bool:
    if not isinstance(value, dict):
        return _reject(path, report, f"{_label(path)} is {quote_value(value)}", "write a mapping, or leave it out")
    size = len(msgspec.json.encode(value))
    if size > kind.bytes_max:
        hint = f"write at most {kind.bytes_max} bytes, and keep data in the bucket"
        return _reject(path, report, f"{_label(path)} has {size} bytes", hint)
    return True


def _scalar(value: Any, kind: Text | Whole | Flag | Choice | Scalar, path: Path, report: Report) -> bool:
    if value is None:
        return _reject(path, report, f"{_label(path)} is empty", "write a value, or leave the field out")
    match kind:
        case Text():
            return _text(value, kind, path, report)
        case Whole(at_least, at_most):
            is_valid = isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most
            hint = f"write a whole number from {at_least} to {at_most}"
        case Flag():
            is_valid, hint = isinstance(value, bool), "write true or false"
        case Scalar(ordered):
            is_valid = _type_name(value) is not None and not (ordered and isinstance(value, bool))
            hint = "write text or a number" if ordered else "write text, a number, true or false"
        case Choice(values):
            if isinstance(value, str) and value in values:
                return True
            is_valid = False
            hint = _foreign_word_hint(path, value) or closest(str(value), values)
    return is_valid or _reject(path, report, f"{_label(path)} is {quote_value(value)}", hint)


def _text(value: Any, kind: Text, path: Path, report: Report) -> bool:
    if kind.zero and value == 0 and type(value) is int:
        return True
    if not isinstance(value, str):
        hint = f"write {kind.form}" if isinstance(value, dict | list) else f"write {kind.form}; numbers in quotes"
        return _reject(path, report, f"{_label(path)} is {quote_value(value)}, not text", hint)
    if len(value) > kind.chars_max:
        message = f"{_label(path)} has {len(value)} characters"
        return _reject(path, report, message, f"write at most {kind.chars_max}")
    if not kind.matcher.match(value):
        return _reject(path, report, f"{_label(path)} is {quote_value(value)}", f"write {kind.form}")
    return True


def _foreign_word_hint(path: Path, value: Any) -> str | None:
    """Return a hint for words that other systems, or other fields, use here."""
    if path[-1] == "activation" and value in tuple(SourceKind):
        return f"write 'activation: source' and 'source: {{kind: {value}}}'"
    if path[-1] == "execution_strategy" and value in ("Bulk", "Full"):
        return "write PerUpdate or PerPartition: there is one task for each event"
    return None


def _reject(path: Path, report: Report, message: str, hint: str) -> bool:
    report.add(path, message, hint)
    return False


def _label(path: Path) -> str:
    """Return how messages name a value: by its field, or by the list that it is in."""
    names = [step for step in path if isinstance(step, str)]
    if not names:
        return "the document"
    return repr(names[-1]) if isinstance(path[-1], str) else f"item {int(path[-1]) + 1} of {names[-1]!r}"


def _owner(path: Path, members: dict[str, Any]) -> str:
    name = members.get("name")
    return f"the job {name!r}" if isinstance(name, str) and len(path) == 2 else _label(path)
