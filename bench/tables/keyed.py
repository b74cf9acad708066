"""An upsert of 1% of the keys into a large table: by a task of ``latest``, by a script that rewrites it by a window, by
Delta's MERGE on the newest Spark that it supports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
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
        self._qo, self._bare, self._directory = qo, bare, directory
        self._batches = 0
        self._tables = 0
        self._changes = ""

    def load(self, rows: int) -> float:
        """The first rows of both sides; how long qo took for the table."""
        self._rows = rows
        first = f"{self._directory}/table-0"
        self._bare.ask("customers", target=first, rows=rows)
        return self._upsert(Path(first))

    def next_changes(self) -> None:
        self._changes = f"{self._directory}/changes-{self._batches}"
        self._bare.ask("changes", target=self._changes, rows=self._rows, one_in=ONE_IN, sequence=self._batches + 1)

    def upsert(self) -> float:
        self.next_changes()
        return self._upsert(Path(self._changes))

    def rewrite(self) -> float:
        table, self._tables = f"{self._directory}/table-{self._tables}", self._tables + 1
        target = f"{self._directory}/table-{self._tables}"
        return self._bare.ask("rewrite", table=table, changes=self._changes, target=target)["seconds"]

    def check_delta(self, delta: Partner, table: str) -> None:
        """Delta has the same rows as the script. Raises RuntimeError."""
        sides = [self._bare.ask("digest", tables=[self._table]), delta.ask("digest", table=table)]
        if sides[0] != sides[1]:
            raise RuntimeError(f"the sides differ: {sides}")

    @property
    def changes(self) -> str:
        return self._changes

    def check(self) -> None:
        """Both sides have the same rows. Raises RuntimeError."""
        files = [str(path) for path in self._committed()]
        sides = [self._bare.ask("digest", tables=each)["digest"] for each in (files, [self._table])]
        if sides[0] != sides[1]:
            raise RuntimeError(f"the sides differ: {sides}")

    @property
    def _table(self) -> str:
        return f"{self._directory}/table-{self._tables}"

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


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> Iterable[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="qo-bench-") as directory,
        Installation(PIPELINE, within_s=WITHIN_S) as qo,
        Partner("bench.tables.window_rewrite") as bare,
    ):
        bare.ask("open", **sessions.told())
        upserts = Upserts(qo, bare, Path(directory))
        load_s = upserts.load(rows)
        sides = by_turns(rounds, upserts.upsert, upserts.rewrite)
        upserts.check()
        took, rewrote = sides
        yield result(
            "latest_vs_full_rewrite",
            median(rewrote) / median(took),
            "times as fast",
            target=Target("value", ">=", 5),
            of=[other / own for own, other in zip(took, rewrote, strict=True)],
            upsert_s=[round(each, 2) for each in took],
            rewrite_s=[round(each, 2) for each in rewrote],
            first_load_s=round(load_s, 2),
            phases=upserts.result()["seconds"],
            rows=rows,
            keys_changed=upserts.result()["keys_changed"],
            buckets=BUCKETS,
            rounds=rounds,
            note="seconds from the claim of the task to its commit; the script: read, window by key, write",
            **sessions.described(),
        )


def measure_delta(rows: int = ROWS, rounds: int = ROUNDS) -> Iterable[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="qo-bench-") as directory,
        Installation(PIPELINE, within_s=WITHIN_S) as qo,
        Partner("bench.tables.window_rewrite") as bare,
        Partner("bench.tables.delta_merge", python=python_of("delta-spark")) as delta,
    ):
        conf = sessions.told()
        bare.ask("open", **conf)
        settings = {"master": conf["conf"]["spark.master"], "memory": conf["conf"]["spark.driver.memory"]}
        opened = delta.ask("open", **settings, environment={"JAVA_HOME": conf["environment"]["JAVA_HOME"]})
        upserts = Upserts(qo, bare, Path(directory))
        upserts.load(rows)
        tables = {vectors: f"{directory}/delta-{vectors}" for vectors in (False, True)}
        for vectors, table in tables.items():
            delta.ask("load", rows=f"{directory}/table-0", table=table, vectors=vectors)

        def merge(table: str) -> float:
            return delta.ask("merge", changes=upserts.changes, table=table)["seconds"]

        sides = by_turns(rounds, upserts.upsert, upserts.rewrite, *(lambda t=t: merge(t) for t in tables.values()))
        upserts.check()
        for table in tables.values():
            upserts.check_delta(delta, table)
        took, _, plain, vectors_took = sides
        for name, other in (("", plain), ("_with_vectors", vectors_took)):
            yield result(
                f"latest_vs_delta_merge{name}",
                median(other) / median(took),
                "times as fast",
                of=[one / own for own, one in zip(took, other, strict=True)],
                upsert_s=[round(each, 2) for each in took],
                merge_s=[round(each, 2) for each in other],
                rows=rows,
                rounds=rounds,
                delta=version_of("delta-spark"),
                delta_spark=opened["spark"],
                note="Delta reads rows with deletion vectors through these; files of latest have exactly their rows",
                **sessions.described(),
            )


FAMILIES = [
    Family(["latest_vs_full_rewrite"], measure),
    Family(["latest_vs_delta_merge", "latest_vs_delta_merge_with_vectors"], measure_delta),
]
