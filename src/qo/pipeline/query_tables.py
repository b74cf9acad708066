"""Finds the tables that a query in Spark SQL reads, without running it.

Names that the query defines itself are left out: common table expressions where they are in scope, aliases of tables,
of subqueries and of lateral views, and functions that make rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

DIALECT = "spark"
CHARS_MAX = 60_000
CACHED_MAX = 64  # A deploy reads each query several times.


@dataclass(frozen=True, slots=True)
class TableName:
    """A place where a query reads a table. Line and column count from 1."""

    parts: tuple[str, ...]  # Without quotes, in lower case: Spark does not distinguish case here.
    start: int  # The first character of the name in the query.
    end: int  # One past its last character.
    line: int
    column: int

    def __str__(self) -> str:
        return ".".join(self.parts)


class UnreadableQuery(ValueError):
    """The text is not one query, or has syntax that is not understood here. Spark may still run it."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@lru_cache(CACHED_MAX)
def find_tables(query: str) -> tuple[TableName, ...]:
    """Return every place where the query reads a table, in the order of the text. Raises UnreadableQuery."""
    tables = [_table_name(query, parts) for parts in _read_names(_parse(query))]
    return tuple(sorted(tables, key=lambda each: each.start))


def _parse(query: str) -> Any:
    if len(query) > CHARS_MAX:
        raise UnreadableQuery(f"it has more than {CHARS_MAX} characters")
    import sqlglot  # Slow to import, and only needed by pipelines with queries.
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    try:
        statements = [each for each in sqlglot.parse(query, read=DIALECT) if each is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        text, column = str(first.get("highlight") or "").strip(), first.get("col") or 1
        where = f" at {text[:40]!r}" if text else ""
        column = max(1, column - max(0, len(text) - 1))  # It is that of the last character.
        raise UnreadableQuery(f"its syntax is not understood{where}", first.get("line") or 1, column) from None
    except (SqlglotError, RecursionError) as error:
        raise UnreadableQuery(
            "it is nested too deeply" if isinstance(error, RecursionError) else "its syntax is not understood"
        ) from None
    if len(statements) != 1:
        raise UnreadableQuery(f"it has {len(statements)} statements instead of one")
    if not isinstance(statements[0], exp.Query):
        raise UnreadableQuery("it does not begin with SELECT, FROM or WITH")
    return statements[0]


def _read_names(root: Any) -> Iterator[list[Any]]:
    """Yield the identifiers that make up the name of each table that is read. Without recursion: sums nest deeply."""
    from sqlglot import exp

    waiting: list[tuple[Any, frozenset[str]]] = [(root, frozenset())]
    while waiting:
        node, defined = waiting.pop()
        if isinstance(node, exp.With):
            continue  # Done where it stands, for what it defines counts for its neighbours.
        scope = defined
        for with_ in (each for each in node.args.values() if isinstance(each, exp.With)):
            for cte in with_.expressions:
                name = cte.alias.lower()
                waiting.append((cte.this, scope | {name} if with_.recursive else scope))
                scope = scope | {name}
        parts = _name_parts(node)
        if parts and not (len(parts) == 1 and parts[0].name.lower() in scope):
            yield parts
        waiting.extend((child, scope) for child in node.iter_expressions())


def _name_parts(node: Any) -> list[Any]:
    """Return the identifiers of a table's name; none for anything else."""
    from sqlglot import exp

    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        return [each for each in (node.args.get("catalog"), node.args.get("db"), node.this) if each is not None]
    if isinstance(node, exp.Anonymous) and node.name.upper() == "TABLE":  # The argument of a function of tables.
        argument = node.expressions[0] if len(node.expressions) == 1 else None
        return argument.parts if isinstance(argument, exp.Column) else []
    return []


def _table_name(query: str, parts: list[Any]) -> TableName:
    start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
    before = query[:start]
    return TableName(
        parts=tuple(each.name.lower() for each in parts),
        start=start,
        end=end,
        line=before.count("\n") + 1,
        column=start - (before.rfind("\n") + 1) + 1,
    )
