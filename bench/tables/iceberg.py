"""What it costs the dispatcher to keep a published dataset as a table, in CPU time of its process.

Beside it, what PyIceberg needs for the same table: ``add_files`` of all files, then the replacement of one partition.
PyIceberg reads the footer of every file. Workers of qo have read those as they wrote the files, which is not counted;
the setting ``footers_s`` says how long it takes for all of them.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.dispatcher.ground import deployed
from bench.harness import Family, Result, Target, median, result
from qo.agent.parquet_footers import column_types, footer_stats, read_footer
from qo.api.contract.task import ColumnBody
from qo.config.settings import Settings
from qo.core.pipeline.file_stats import FileStats, pack_stats
from qo.dispatcher.engine.loops import table_keeper
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.topology import load
from qo.dispatcher.state.upgrade import upgrade
from qo.dispatcher.tables import due_tables
from qo.pipeline.parsing import read

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")

SIZES = (1, 1_000, 10_000)
GOALS_MS: Mapping[int, float] = {1: 5, 1_000: 80, 10_000: 80}
ROUNDS = 7
TYPES = {"key": "string", "id": "long", "name": "string", "amount": "double", "at": "timestamp"}
BODIES = [ColumnBody(name=name, type=type_) for name, type_ in TYPES.items()]
TEXT = """
name: shop
jobs:
  - {name: orders, activation: source, outputs: 1, source: {kind: manual}, runtime: dispatcher, operator: noop}
publish:
  orders: {from: {job: orders}}
"""


class _Table:
    """A published dataset with so many partitions of one file each, as their commits would leave it."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.state: State = open_state(f"sqlite:{directory / 'state.db'}")
        upgrade(self.state)
        deployed(self.state, read(TEXT))
        with self.state.read() as tx:
            [(self.dataset, self.generation)] = load(tx).current.items()
        chosen = Settings()
        self.settings = replace(chosen, dispatcher=replace(chosen.dispatcher, data=f"file:{self.data}"))
        self.folder = self.data / self.dataset / self.generation
        self.folder.mkdir(parents=True)
        self.revision = 0
        self.footers_s = 0.0
        self.kernel_s = 0.0  # Of the last ``keep``.

    def commit(self, keys: Iterable[str]) -> list[Path]:
        """Commit a file for each key, and return the files."""
        with self.state.write() as tx:
            now = tx.now
        rows: list[dict[str, Any]] = []
        paths: list[Path] = []
        for key in keys:
            self.revision += 1
            path = self.folder / f"{self.revision}.parquet"
            stats = self._write(path, key)
            paths.append(path)
            rows.append(self._row(path, key, stats, now))
        with self.state.write() as tx:
            tx.insert(schema.commits, rows)
            for row in rows:
                replaced = (
                    schema.commits.c.partition_key == row["partition_key"],
                    schema.commits.c.replaced_by.is_(None),
                )
                older = sa.update(schema.commits).where(*replaced, schema.commits.c.revision < row["revision"])
                if self.revision > len(rows):
                    tx.execute(older.values(replaced_by=row["revision"]))
            if self.revision == len(rows):
                columns = [each.model_dump() for each in BODIES]
                about = {"generation_id": self.generation, "revision": 1, "schema_hash": "0", "columns": columns}
                tx.insert(schema.generation_columns, [about])
            table = schema.generation_rows
            tx.execute(sa.update(table).where(table.c.id == self.generation).values(revision=self.revision))
        return paths

    def _write(self, path: Path, key: str) -> FileStats:
        ids = list(range(self.revision * 10, self.revision * 10 + 10))
        at = pa.array([1_700_000_000_000_000 + each for each in ids], pa.timestamp("us", tz="UTC"))
        columns = {"key": [key] * 10, "id": ids, "name": [f"name {each}" for each in ids]}
        pq.write_table(pa.table(columns | {"amount": [each / 7 for each in ids], "at": at}), path)
        began = time.process_time()
        stats = footer_stats(read_footer(path), path.stat().st_size, column_types(BODIES))
        self.footers_s += time.process_time() - began
        return stats

    def _row(self, path: Path, key: str, stats: FileStats, now: Any) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "dataset_id": self.dataset,
            "generation_id": self.generation,
            "partition_key": key,
            "location": f"file:{self.folder}/",
            "files": [path.name],
            "rows": stats.rows,
            "bytes": stats.bytes,
            "task_id": "bench",
            "attempt": 1,
            "committed_at": now,
            "file_stats": pack_stats({path.name: stats}),
        }

    def keep(self) -> float:
        """Bring the table up to date, and return the CPU seconds of that."""
        began, in_kernel = time.process_time(), _kernel_s()
        did = asyncio.run(table_keeper.tick(self.state, self.settings))
        assert did == 1, "there was a commit to show"
        self.kernel_s = _kernel_s() - in_kernel
        return time.process_time() - began


def _kernel_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def _keys(files: int) -> list[str]:
    return [f"p{number:06}" for number in range(files)]


def _commit_costs() -> Iterable[Result]:
    for files in SIZES:
        with _PreparedTable(files) as table:
            whole_s = table.keep()
            runs: list[float] = []
            kernel_ms: list[float] = []
            for number in range(ROUNDS):
                table.commit([_keys(files)[files * number // ROUNDS]])
                runs.append(1000 * table.keep())
                kernel_ms.append(1000 * table.kernel_s)
            table.state.close()
        target = Target("value", "<=", GOALS_MS[files])
        # The part that depends on the file system: where many files were deleted just now, ext4 takes up to a
        # millisecond for each new one.
        kernel = {"in_kernel_ms": [round(each, 1) for each in kernel_ms]}
        settings = {"files": files, "columns": len(TYPES), "whole_ms": round(whole_s * 1000, 1), **kernel}
        yield result(f"iceberg_commit_ms_{files}", median(runs), "ms", target=target, of=runs, **settings)


class _PreparedTable:
    def __init__(self, files: int) -> None:
        self._files = files
        self._directory = tempfile.TemporaryDirectory(prefix="qo-bench-")
        self.paths: list[Path] = []

    def __enter__(self) -> _Table:
        table = _Table(Path(self._directory.__enter__()))
        self.paths = table.commit(_keys(self._files))
        return table

    def __exit__(self, *error: Any) -> None:
        self._directory.__exit__(*error)


def _against_add_files() -> Iterable[Result]:
    files = SIZES[-1]
    with _PreparedTable(files) as table:
        paths = sorted(table.folder.glob("*.parquet"))
        ours = [table.keep()]
        [new] = table.commit([_keys(files)[files // 2]])
        ours.append(table.keep())
        table.state.close()
        theirs = _pyiceberg(Path(table.data), [str(each) for each in paths], str(new), _keys(files)[files // 2])
        settings = {
            "files": files,
            "footers_s": round(table.footers_s, 2),
            "parts_s": [round(each, 2) for each in ours],
            "baseline_parts_s": [round(each, 2) for each in theirs],
            "against": "PyIceberg, catalogue in SQLite: add_files, then delete and add_files in one transaction",
        }
    value = sum(theirs) / sum(ours)
    yield result("iceberg_vs_add_files", value, "times less CPU", target=Target("value", ">=", 10), **settings)


def _pyiceberg(directory: Path, paths: list[str], new: str, key: str) -> list[float]:
    """Return the CPU seconds of adding all files, and of replacing one partition."""
    sql: Any = import_module("pyiceberg.catalog.sql")
    expressions: Any = import_module("pyiceberg.expressions")
    location = directory / "pyiceberg"
    location.mkdir()
    properties = {"uri": f"sqlite:///{location}/catalog.db", "warehouse": f"file://{location}"}
    catalog = sql.SqlCatalog("bench", **properties)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", schema=pq.read_schema(new))
    with table.update_spec() as update:
        update.add_identity("key")

    def replace_partition() -> None:
        with table.transaction() as transaction:
            transaction.delete(expressions.EqualTo("key", key))
            transaction.add_files([new])

    return [_cpu_s(lambda: table.add_files(paths)), _cpu_s(replace_partition)]


def _cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


due_tables.SECONDS, due_tables.PIECES_PER_S = 0.0, 10**12  # Here nobody waits between two commits.
FAMILIES = [
    Family([f"iceberg_commit_ms_{files}" for files in SIZES], _commit_costs),
    Family(["iceberg_vs_add_files"], _against_add_files),
]
