"""The output of commands: tables for people, one JSON document for programs.

Only a terminal gets colours; piped output is plain aligned text.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# Words that mean the same in every table: the states of tasks, workers and checks.
_STYLES = {
    "pending": "cyan",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "archived": "dim",
    "active": "green",
    "paused": "yellow",
    "draining": "yellow",
    "stale": "red",
    "pass": "green",
    "fail": "red",
    "enabled": "green",
    "disabled": "dim",
}


WIDTH_MAX = 1_000


class Output:
    def __init__(self, *, color: bool) -> None:
        self.color = color and not os.environ.get("NO_COLOR")

    def document(self, value: Any) -> None:
        """Print the JSON document of this command; each command prints exactly one."""
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")

    def line(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def note(self, text: str) -> None:
        """Print a remark for people on standard error, so that it never mixes with the output."""
        sys.stdout.flush()
        sys.stderr.write(f"note: {text}\n")

    def data(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows of data as a table. Names of columns keep their case, unlike the headers of our own tables."""
        self.table(columns, rows, keep_case=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, keep_case: bool = False) -> None:
        cells = [[one_line(cell) for cell in row] for row in rows]
        if sys.stdout.isatty():
            self._rich_table(headers, cells)
            return
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        for row in [[header if keep_case else header.upper() for header in headers], *cells]:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  ".join(padded).rstrip())

    def row(self, cells: Sequence[str], widths: Sequence[int]) -> None:
        """Print one row of a table whose rows arrive one by one."""
        padded = [one_line(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)]
        if not sys.stdout.isatty():
            self.line("  ".join(padded).rstrip())
            return
        from rich.text import Text

        parts = [(text, _STYLES.get(text.strip(), "")) for text in padded]
        self._console().print(Text("  ").join(Text(text, style) for text, style in parts), soft_wrap=True)

    def record(self, pairs: Mapping[str, str]) -> None:
        """Print names and values, one pair a line. Empty values are left out; values of several lines are indented."""
        filled = {name: value for name, value in pairs.items() if value}
        width = max(map(len, filled), default=0)
        for name, value in filled.items():
            first, *more = value.splitlines()
            self._pair(name.ljust(width), one_line(first))
            for text in more:
                self.line(" " * (width + 2) + one_line(text))

    def _pair(self, name: str, value: str) -> None:
        if not sys.stdout.isatty():
            self.line(f"{name}  {value}")
            return
        from rich.text import Text

        self._console().print(Text.assemble((name, "bold"), "  ", (value, _STYLES.get(value, ""))), soft_wrap=True)

    def _rich_table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in headers:
            table.add_column(header.upper(), no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console = self._console()
        console.width = (
            WIDTH_MAX  # One row, one line: a narrow terminal wraps it, and it can still be copied whole.
        )
        console.print(table)

    def _console(self) -> Any:
        from rich.console import Console

        return Console(highlight=False, no_color=not self.color, emoji=False, markup=False)


# A long text in quotes, or a long word: input of the user that an error message repeats.
_LONG = re.compile(r"(?<![^\s(=])(['\"])(?!\s)((?:(?!\1)[^\n]){80})(?:(?!\1)[^\n]){20,}\1|(\S{80})\S{120,}")


def shorten(message: str) -> str:
    """Return the message with the long texts in it shortened."""
    return _LONG.sub(lambda match: f"{match[1]}{match[2]}…{match[1]}" if match[1] else f"{match[3]}…", message)


def one_line(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
