"""An upsert of 1% of the keys into a large table: by a task of ``latest``, by a script that rewrites it by a window, by
Delta's MERGE on the newest Spark that it supports."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.spark import sessions
from bench.spark.ground import Installation, tasks
from bench.spark.talking import Partner
from bench.spark.venvs import python_of, version_of
from qo.dispatcher.state import schema

ROWS = 10_000_000
ONE_IN = 100
BUCKETS = 32
ROUNDS = 3
WITHIN_S = 1_200.0  # The first load of all rows, on few cores.

PIPELINE = f"""
name: keyed
defaults: {{max_attempts: 1}}
jobs:
- {{name: landed, source: {{kind: manual}}}}
- {{name: log, operator: ingest, inputs: [landed], config: {{format: parquet}}}}
- name: customers
  operator: latest
  inputs: [log]
  config: {{keys: [id], sequence_by: sequence, buckets: {BUCKETS}}}
"""


class Upserts:
    """One table on each side, that takes the same changes in turn."""

    def __init__(self, qo: Installation, bare: Partner, directory: Path) -> None:
        self._qo, self._bare, self.directory = qo, bare, directory
        self._batches = 0
        self._tables = 0
        self._changes = ""

    def load(self, rows: int) -> float:
        """The first rows of both sides; how long qo took for the table."""
        self.rows = rows
        first = f"{self.directory}/table-0"
        self._bare.ask("customers", target=first, rows=rows)
        return self._upsert(Path(first))

    def next_changes(self) -> None:
        self._changes = f"{self.directory}/changes-{self._batches}"
        self._bare.ask("changes", target=self._changes, rows=self.rows, one_in=ONE_IN, sequence=self._batches + 1)

    def upsert(self) -> float:
        self.next_changes()
        return self._upsert(Path(self._changes))

    def rewrite(self) -> float:
        table, self._tables = f"{self.directory}/table-{self._tables}", self._tables + 1
        target = f"{self.directory}/table-{self._tables}"
        return self._bare.ask("rewrite", table=table, changes=self._changes, target=target)["seconds"]

    def compare(self, digest: Sequence[str]) -> None:
        """Compare another side with what qo has committed. Raises RuntimeError if they differ."""
        files = [str(path) for path in self._committed()]
        own = self._bare.ask("digest", tables=files)["digest"]
        if own != digest:
            raise RuntimeError(f"the sides differ: {own}, {digest}")

    def check(self) -> None:
        """Compare the script's table with what qo has committed. Raises RuntimeError if they differ."""
        self.compare(self._bare.ask("digest", tables=[self._table])["digest"])

    @property
    def changes(self) -> str:
        return self._changes

    @property
    def _table(self) -> str:
        return f"{self.directory}/table-{self._tables}"

    def _upsert(self, files: Path) -> float:
        self._batches += 1
        names = sorted(path.name for path in files.glob("*.parquet"))
        event = {
            "output": 0,
            "partition_key": f"batch-{self._batches}",
            "attributes": {"location": f"file:{files}", "files": names},
        }
        self._qo.run("landed", [event], {"customers": self._batches})
        times = sa.select(tasks.c.started_at, tasks.c.completed_at).where(tasks.c.job == "customers")
        last = self._qo.rows(times.order_by(tasks.c.created_at.desc()).limit(1))[0]
        return (last["completed_at"] - last["started_at"]).total_seconds()

    def result(self) -> Any:
        output = sa.select(tasks.c.output).where(tasks.c.job == "customers").order_by(tasks.c.created_at.desc())
        return self._qo.rows(output.limit(1))[0]["output"]

    def _committed(self) -> list[Path]:
        commits, datasets = schema.commits, schema.datasets
        query = (
            sa.select(commits.c.location, commits.c.files)
            .join(datasets, datasets.c.id == commits.c.dataset_id)
            .where(datasets.c.job == "customers", commits.c.replaced_by.is_(None))
        )
        return [
            Path(row["location"].removeprefix("file:")) / name
            for row in self._qo.rows(query)
            for name in row["files"] or []
        ]


def measure_rewrite(rows: int = ROWS, rounds: int = ROUNDS) -> Iterable[Result]:
    with _loaded(rows) as (upserts, load_s):
        sides = (upserts.upsert, upserts.rewrite)
        by_turns(1, *sides)  # Java compiles what both of them run for the first time.
        took, rewrote = by_turns(rounds, *sides)
        upserts.check()
        settings = _settings(upserts, took, load_s)
        note = "seconds from the claim of the task to its commit; the script: read, window by key, write"
        yield _ratio("latest_vs_full_rewrite", took, rewrote, Target("value", ">=", 5), note=note, **settings)


def measure_merges(rows: int = ROWS, rounds: int = ROUNDS) -> Iterable[Result]:
    with (
        _loaded(rows) as (upserts, load_s),
        Partner("bench.tables.delta_merge", python=python_of("delta-spark")) as delta,
    ):
        merges = Merges(delta, upserts, upserts.directory, sessions.told())
        sides = (upserts.upsert, merges.plain, merges.with_vectors)
        by_turns(1, *sides)
        took, merged, marked = by_turns(rounds, *sides)
        merges.check()
        versions = {"delta": version_of("delta-spark"), "delta_spark": merges.spark}
        settings = _settings(upserts, took, load_s) | versions
        note = (
            "MERGE of the same rows by Delta without deletion vectors: files have exactly the rows that there are"
        )
        yield _ratio("latest_vs_delta_merge", took, merged, note=note, **settings)
        note = "MERGE by Delta with deletion vectors: files keep rows that are gone, and readers need the vectors"
        yield _ratio("latest_vs_delta_vectors", took, marked, note=note, **settings)


@contextmanager
def _loaded(rows: int) -> Generator[tuple[Upserts, float]]:
    """Both sides with their first rows, and how long qo took for these."""
    with (
        tempfile.TemporaryDirectory(prefix="qo-bench-") as directory,
        Installation(PIPELINE, within_s=WITHIN_S) as qo,
        Partner("bench.tables.window_rewrite") as bare,
    ):
        bare.ask("open", **sessions.told())
        upserts = Upserts(qo, bare, Path(directory))
        yield upserts, upserts.load(rows)


def _settings(upserts: Upserts, took: Sequence[float], load_s: float) -> dict[str, Any]:
    last = upserts.result()
    return {
        "upsert_s": [round(each, 2) for each in took],
        "phases": last["seconds"],
        "first_load_s": round(load_s, 2),
        "rows": upserts.rows,
        "keys_changed": last["keys_changed"],
        "buckets": BUCKETS,
        "rounds": len(took),
        **sessions.described(),
    }


def _ratio(
    name: str, took: Sequence[float], others: Sequence[float], target: Target | None = None, **settings: Any
) -> Result:
    return result(
        name,
        median(others) / median(took),
        "times as fast",
        target=target,
        of=[other / own for own, other in zip(took, others, strict=True)],
        other_s=[round(each, 2) for each in others],
        **settings,
    )


class Merges:
    """Two tables of Delta that take the same changes: one with deletion vectors, one without."""

    def __init__(self, delta: Partner, upserts: Upserts, directory: Path, told: Mapping[str, Any]) -> None:
        self._delta, self._upserts, self.directory = delta, upserts, directory
        conf, environment = told["conf"], told["environment"]
        java = {name: environment[name] for name in ("JAVA_HOME",) if name in environment}
        settings = {"master": conf["spark.master"], "memory": conf["spark.driver.memory"]}
        self.spark = delta.ask("open", **settings, environment=java)["spark"]
        for vectors in (False, True):
            delta.ask("load", rows=f"{directory}/table-0", table=self._table(vectors=vectors), vectors=vectors)

    def plain(self) -> float:
        return self._merge(vectors=False)

    def with_vectors(self) -> float:
        return self._merge(vectors=True)

    def check(self) -> None:
        for vectors in (False, True):
            self._upserts.compare(self._delta.ask("digest", table=self._table(vectors=vectors))["digest"])

    def _merge(self, *, vectors: bool) -> float:
        return self._delta.ask("merge", changes=self._upserts.changes, table=self._table(vectors=vectors))[
            "seconds"
        ]

    def _table(self, *, vectors: bool) -> str:
        return f"{self.directory}/delta-{vectors}"


FAMILIES = [
    Family(["latest_vs_full_rewrite"], measure_rewrite),
    Family(["latest_vs_delta_merge", "latest_vs_delta_vectors"], measure_merges),
]
