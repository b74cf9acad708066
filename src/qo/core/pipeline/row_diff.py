"""The differences between the rows of two versions of a dataset, as queries that an engine runs.

Rows are told apart by a key, which no two rows of one version share: then a row is added, removed or changed. Without
a key, versions are compared as multisets: a row is added or removed so many times. Rows that both versions have in the
same file cancel out, so an engine sees only the files that one version has and the other has not.

The SQL is what DuckDB and Spark have in common. Nulls are equal to each other, and so are NaNs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qo.core.pipeline.dag import Job
from qo.core.pipeline.expectation import Severity
from qo.errors import UsageError

BEFORE, AFTER = "before_rows", "after_rows"  # The relations that an engine provides.
_NUMBER = re.compile(r"u?(tiny|small|big|huge)?int(eger)?\b|float|double|real|decimal", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    quote: str  # Around names.
    text: str  # The type of text.
    as_json: tuple[str, ...] = ()  # Types whose names contain one of these are compared as JSON.

    def name(self, name: str) -> str:
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"


DUCKDB = Dialect('"', "VARCHAR")
SPARK = Dialect("`", "STRING", ("map<", "variant"))


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column of either version, with its values before and after as expressions of one type."""

    name: str
    alias: str  # In queries: names of columns may be anything.
    before: str
    after: str

    @property
    def differs(self) -> str:
        return f"b.{self.alias} IS DISTINCT FROM a.{self.alias}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The queries that compare ``before_rows`` with ``after_rows``."""

    keys: tuple[ComparedColumn, ...]  # Empty: rows are compared as a whole.
    values: tuple[ComparedColumn, ...]

    @property
    def columns(self) -> tuple[ComparedColumn, ...]:
        return (*self.keys, *self.values)

    def repeated_keys(self, relation: str) -> str:
        """Return the query for keys that occur more than once: how many there are, and the values of one."""
        keys = _aliases(self.keys)
        repeated = f"SELECT {keys} FROM {relation}_compared GROUP BY {keys} HAVING count(*) > 1"
        return f"WITH {self._sides()} SELECT count(*) OVER (), {keys} FROM ({repeated}) ORDER BY {keys} LIMIT 1"

    def counts(self) -> str:
        """Return the query for the numbers of rows that were added, removed and changed, and changed by column."""
        both = "b.is_there IS NOT NULL AND a.is_there IS NOT NULL"
        numbers = [
            "count(*) FILTER (WHERE b.is_there IS NULL)",
            "count(*) FILTER (WHERE a.is_there IS NULL)",
            f"count(*) FILTER (WHERE {both} AND ({self._any_differs()}))",
            *(f"count(*) FILTER (WHERE {both} AND {each.differs})" for each in self.values),
        ]
        return f"WITH {self._sides()} SELECT {', '.join(numbers)} FROM {self._joined('FULL OUTER')}"

    def removed(self, limit: int) -> str:
        """Return the query for some rows whose key the later version lacks, in order of the key."""
        return self._only(limit, "b", "LEFT OUTER", "a")

    def added(self, limit: int) -> str:
        return self._only(limit, "a", "RIGHT OUTER", "b")

    def changed(self, limit: int) -> str:
        """Return the query for some changed rows: the key, the values before, the values after."""
        keys = [f"a.{each.alias}" for each in self.keys]
        values = [f"{side}.{each.alias}" for side in ("b", "a") for each in self.values]
        selected = ", ".join(f"{each} AS c{at}" for at, each in enumerate([*keys, *values]))
        return (
            f"WITH {self._sides()} SELECT {selected} FROM {self._joined('INNER')} WHERE {self._any_differs()} "
            f"ORDER BY {', '.join(keys)} LIMIT {limit}"
        )

    def surplus_counts(self) -> str:
        """Return the query for how many rows were added and removed, where rows have no key."""
        return (
            f"{self._surpluses()} SELECT coalesce(sum(surplus) FILTER (WHERE surplus > 0), 0), "
            "coalesce(-sum(surplus) FILTER (WHERE surplus < 0), 0) FROM surpluses"
        )

    def surplus(self, relation: str, limit: int) -> str:
        """Return the query for some rows that a version has more often than the other, and how much more often."""
        columns, sign = _aliases(self.columns), "<" if relation == BEFORE else ">"
        return (
            f"{self._surpluses()} SELECT {columns}, abs(surplus) FROM surpluses WHERE surplus {sign} 0 "
            f"ORDER BY {columns} LIMIT {limit}"
        )

    def _surpluses(self) -> str:
        columns = _aliases(self.columns)
        both = (
            f"SELECT {columns}, 1 AS n FROM {AFTER}_compared UNION ALL "
            f"SELECT {columns}, -1 AS n FROM {BEFORE}_compared"
        )
        return (
            f"WITH {self._sides()}, surpluses AS (SELECT {columns}, sum(n) AS surplus FROM ({both}) AS both_sides "
            f"GROUP BY {columns} HAVING sum(n) <> 0)"
        )

    def _only(self, limit: int, own: str, join: str, other: str) -> str:
        columns = ", ".join(f"{own}.{each.alias}" for each in self.columns)
        order = ", ".join(f"{own}.{each.alias}" for each in self.keys)
        return (
            f"WITH {self._sides()} SELECT {columns} FROM {self._joined(join)} "
            f"WHERE {other}.is_there IS NULL ORDER BY {order} LIMIT {limit}"
        )

    def _sides(self) -> str:
        before = ", ".join(f"{each.before} AS {each.alias}" for each in self.columns)
        after = ", ".join(f"{each.after} AS {each.alias}" for each in self.columns)
        return (
            f"{BEFORE}_compared AS (SELECT {before}, 1 AS is_there FROM {BEFORE}), "
            f"{AFTER}_compared AS (SELECT {after}, 1 AS is_there FROM {AFTER})"
        )

    def _joined(self, kind: str) -> str:
        on = " AND ".join(f"b.{each.alias} IS NOT DISTINCT FROM a.{each.alias}" for each in self.keys)
        return f"{BEFORE}_compared AS b {kind} JOIN {AFTER}_compared AS a ON {on}"

    def _any_differs(self) -> str:
        return " OR ".join(each.differs for each in self.values) or "false"


def key_columns(job: Job, output: int, *, keeps_row_per_key: bool) -> list[str]:
    """Return the columns that tell the rows of an output apart, as its job declares; empty: none.

    ``keeps_row_per_key``: whether its operator keeps one row for each of the ``keys`` of its config.
    """
    if job.unique_key:
        return list(job.unique_key)
    if keeps_row_per_key:
        return [str(each) for each in job.config.get("keys", ())]
    unique = [each for each in job.expectations if each.unique and each.output == output]
    unique.sort(key=lambda each: each.severity is not Severity.FAIL)
    return list(unique[0].unique) if unique else []


def compare(
    dialect: Dialect, before: Mapping[str, str], after: Mapping[str, str], keys: Sequence[str]
) -> Comparison:
    """Return how two versions are compared. ``before`` and ``after``: types of their columns by name.

    A column that one version lacks is null there. A column of two types is compared as numbers, if both are, and else
    as text. Raises UsageError for a key that is no column of both.
    """
    own, other = {name.lower(): name for name in before}, {name.lower(): name for name in after}
    for key in keys:
        if key.lower() not in own.keys() & other.keys():
            names = ", ".join(other[each] for each in other if each in own)
            raise UsageError(f"there is no column {key!r} in both versions: they have {names}")
    wanted_keys = {key.lower() for key in keys}
    compared = {
        key: _compared(dialect, f"q{at}", own.get(key), other.get(key), before, after)
        for at, key in enumerate(dict.fromkeys([*other, *own]))
    }
    return Comparison(
        keys=tuple(compared[key.lower()] for key in keys),
        values=tuple(column for key, column in compared.items() if key not in wanted_keys),
    )


def _compared(
    dialect: Dialect,
    alias: str,
    own: str | None,
    other: str | None,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> ComparedColumn:
    types = [before[own] if own is not None else after[other or ""], after[other] if other is not None else ""]
    types[1] = types[1] or types[0]
    expressions = [
        dialect.name(name) if name is not None else f"CAST(NULL AS {type_})"
        for name, type_ in zip((own, other), types, strict=True)
    ]
    if any(word in type_.lower() for type_ in types for word in dialect.as_json):
        expressions = [f"to_json({each})" for each in expressions]
    elif types[0] != types[1] and not all(_NUMBER.match(each) for each in types):
        expressions = [f"CAST({each} AS {dialect.text})" for each in expressions]
    return ComparedColumn(other or own or "", alias, expressions[0], expressions[1])


def _aliases(columns: Iterable[ComparedColumn]) -> str:
    return ", ".join(each.alias for each in columns)
