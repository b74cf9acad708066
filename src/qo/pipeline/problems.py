"""Problems of a definition, with their positions: collected in one pass, raised together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qo.errors import UsageError

LISTED_MAX = 24  # Names in one hint.
COMPARED_MAX = 500  # Comparing is slow; among more names, only those with the same first letters are compared.
PROBLEMS_MAX = 200  # Nobody reads more; a file of another format would give one for each line.

Path = tuple[str | int, ...]  # From the top of the document: ("jobs", 0, "source", "kind").


@dataclass(frozen=True, slots=True)
class Problem:
    """Line and column count from 1."""

    file: str
    line: int
    column: int
    message: str
    hint: str  # What to write instead.

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}; {self.hint}"


class DefinitionError(UsageError):
    """A definition that is refused. ``problems`` has everything that is wrong, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(slots=True)
class Spot:
    """The position of a value in its file, of its parts, and of their names (``keys``).

    Assign dicts of your own before adding parts or keys: the defaults are shared.
    """

    file: str
    line: int = 1
    column: int = 1
    parts: dict[str | int, Spot] = field(default_factory=lambda: _NONE)
    keys: dict[str | int, Spot] = field(default_factory=lambda: _NONE)

    def at(self, path: Path, *, key: bool = False) -> Spot:
        """Return the spot of a part, or of the nearest value above it; with ``key``, of the name in front of it."""
        spot = self
        for depth, step in enumerate(path):
            if key and depth == len(path) - 1 and step in spot.keys:
                return spot.keys[step]
            if step not in spot.parts:
                break
            spot = spot.parts[step]
        return spot


_NONE: dict[str | int, Spot] = {}  # Shared by the many that have no parts; never written to.


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dicts, lists, text, numbers, true, false, null) and the position of each value."""

    value: Any
    spot: Spot
    text: str = ""  # What it was read from; empty for Python data.

    def locate(self, path: Path, text: str, line: int, column: int) -> tuple[Spot, bool]:
        """Return the spot of a place within a text value, and True; the spot of the value, and False, where they are
        not written alike, as in folded or escaped text.
        """
        value = self.spot.at(path)
        lines, own_line = self.text.split("\n"), text.split("\n")[line - 1]
        if not 1 <= value.line <= len(lines):
            return value, False
        header = lines[value.line - 1][value.column - 1 :]
        at = value.line - 1 + (line if header[:1] == "|" else 0)
        begin = 0 if header[:1] == "|" else value.column - 1
        if own_line.strip() and at < len(lines) and (header[:1] == "|" or line == 1):
            offset = lines[at].find(own_line, begin)
            if offset >= 0:
                return Spot(value.file, at + 1, offset + column), True
        return value, False


@dataclass(slots=True)
class Report:
    """Collects problems at paths of one document."""

    spot: Spot
    problems: list[Problem] = field(default_factory=list[Problem])
    limit: int = PROBLEMS_MAX
    unreadable: set[tuple[int, int]] = field(
        default_factory=set[tuple[int, int]]
    )  # Positions of unreadable values.

    @property
    def full(self) -> bool:
        """Whether further problems would be dropped."""
        return len(self.problems) >= self.limit

    def add(self, path: Path, message: str, hint: str, *, key: bool = False) -> None:
        self.add_at(self.spot.at(path, key=key), message, hint)

    def add_at(self, spot: Spot, message: str, hint: str) -> None:
        if not self.full and (spot.line, spot.column) not in self.unreadable:
            self.problems.append(Problem(spot.file, spot.line, spot.column, message, hint))

    def add_unreadable(self, spot: Spot, message: str, hint: str) -> None:
        """Report a value that cannot be read. Further problems at its position are dropped."""
        self.add_at(spot, message, hint)
        self.unreadable.add((spot.line, spot.column))

    def error(self) -> DefinitionError:
        return DefinitionError(sorted(self.problems, key=lambda each: (each.file, each.line, each.column)))


def closest(name: str, candidates: Iterable[str], *, otherwise: str = "write one of") -> str:
    """Return a hint from a wrong name to the right one, or to all that are allowed."""
    names = sorted(candidates)
    likely = (
        names if len(names) <= COMPARED_MAX else [each for each in names if each[:2] == name[:2]][:COMPARED_MAX]
    )
    near = difflib.get_close_matches(name[:128], likely, n=1, cutoff=0.7)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(names[:LISTED_MAX]) + (", ..." if len(names) > LISTED_MAX else "")
    return f"{otherwise} {listed}" if names else "remove it"


def quote_value(value: Any) -> str:
    """Return a value as messages quote it: short, and as it is written in a file."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
