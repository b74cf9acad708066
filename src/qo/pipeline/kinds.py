"""Kinds of values that a field of a definition can have. The tables of fields are in ``fields``.

A kind is only a description. ``shape`` checks values by it, and ``jsonschema`` derives a schema from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


@dataclass(frozen=True)
class Text:
    """A text that ``pattern`` matches as a whole; ``form`` describes it to people."""

    form: str
    pattern: str = r"[\s\S]*\S[\s\S]*"
    chars_max: int = 200
    zero: bool = False  # The number 0 counts as the text "0", since YAML reads it as a number.

    @cached_property
    def matcher(self) -> re.Pattern[str]:
        return re.compile(rf"(?:{self.pattern})\Z")


@dataclass(frozen=True, slots=True)
class Whole:
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Flag:
    pass


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number or, unless ``ordered``, true or false."""

    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A list of ``of``; ``unique``: no item twice."""

    of: Kind
    at_least: int = 0
    at_most: int = 1000
    unique: bool = False
    short: Text | None = None  # A shorter way to write an item in a file.


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping whose keys the author chooses."""

    keys: Text
    of: Kind
    at_most: int = 1000
    short: Text | None = None  # A shorter way to write a value in a file.


@dataclass(frozen=True, slots=True)
class Filter:
    """A scalar, or a list of scalars of one type."""

    at_most: int = 100


@dataclass(frozen=True, slots=True)
class Anything:
    """A mapping that belongs to the operator."""

    bytes_max: int


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    help: str
    required: bool = False
    default: str | int | bool | None = None  # For people; the values themselves are in core.pipeline.dag.
    derived: bool = (
        False  # A file may leave it out although it is required: it follows from the rest, see short_form.
    )
    short: tuple[Kind, ...] = ()  # Shorter ways to write it in a file, which short_form replaces.
    shorthand: bool = False  # Stands for other fields, and is no field of a completed document.


@dataclass(frozen=True)
class Record:
    """A mapping with these fields and no other. ``removed``: names that people write here, and what to do instead."""

    name: str
    help: str
    fields: tuple[Field, ...]
    removed: tuple[tuple[str, str], ...] = ()
    one_of: tuple[str, ...] = ()  # Exactly one of these is required.

    @cached_property
    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    @cached_property
    def removed_hints(self) -> dict[str, str]:
        return dict(self.removed)


Kind = Text | Whole | Flag | Choice | Scalar | Items | Table | Filter | Anything | Record


def choice(values: type[StrEnum]) -> Choice:
    return Choice(tuple(each.value for each in values))
