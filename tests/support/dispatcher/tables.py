"""Published datasets with real Parquet files, kept as tables, and read as others read them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from qo.api.contract.task import ColumnBody
from qo.config.settings import Settings
from qo.core.pipeline.field_ids import field_id
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.engine.loops import table_keeper
from qo.dispatcher.state.database import State
from qo.dispatcher.views import open_tables
from qo.dispatcher.views.open_tables import TableRecord
from support.dispatcher import pipeline_tasks
from support.dispatcher.pipeline_tasks import claimed, finish, manual_task, output
from support.dispatcher.pipelines import live, loaded
from support.dispatcher.states import Clock

SPARK_TYPES = {"int64": "long", "string": "string", "double": "double"}


@dataclass
class TableSite:
    state: State
    clock: Clock
    root: Path
    settings: Settings
    number: int = 0

    def commit(
        self,
        rows: dict[str, list[Any]],
        key: str | None = None,
        *,
        parts: int = 1,
        job: LiveJob | None = None,
        field_ids: bool = False,
        **more: Any,
    ) -> None:
        """Commit rows as the partition, or as the segment, of the orders. ``field_ids``: the files have them."""
        self.number += 1
        held = claimed(self.state, manual_task(self.state, job or self.orders, f"{self.number}"))
        place = Path(held.work.outputs[0].prefix.removeprefix("file:"))
        place.mkdir(parents=True)
        table = pa.table(rows)
        if field_ids:
            table = table.cast(pa.schema([_with_id(each) for each in table.schema]))
        size = -(-table.num_rows // parts)
        names = [f"part-{at}.parquet" for at in range(parts)]
        for at, name in enumerate(names):
            pq.write_table(table.slice(at * size, size), place / name)
        columns = [ColumnBody(name=each.name, type=SPARK_TYPES[str(each.type)]) for each in table.schema]
        about: dict[str, Any] = {"partition_key": key} if key is not None else {"cursor": self.number}
        values = {"files": names, "rows": table.num_rows, "columns": columns, **about, **more}
        values["bytes"] = sum((place / name).stat().st_size for name in names)
        finish(self.state, held, outputs=[output(held, **values)])

    @property
    def orders(self) -> LiveJob:
        return live(loaded(self.state), "shop.orders")

    def keep(self) -> int:
        """Bring the tables up to date, some time later."""
        self.clock.advance(10)
        return asyncio.run(table_keeper.tick(self.state, self.settings))

    def record(self, name: str = "orders") -> TableRecord:
        with self.state.read() as tx:
            record = open_tables.find_table(tx, "shop", name)
        assert record is not None
        return record

    def table(self, name: str = "orders") -> StaticTable:
        record = self.record(name)
        assert record.problem is None, record.problem
        return StaticTable.from_metadata(record.metadata_location or "")

    def rows(self, *, at: int | None = None, key: bool = False) -> list[tuple[Any, ...]]:
        """The rows of the table, sorted; without the column of the partition key."""
        table = self.table().scan(snapshot_id=at).to_arrow()
        names = [each for each in table.column_names if key or each != "partition_key"]
        return sorted(zip(*(table[each].to_pylist() for each in names), strict=True))


def table_site(state: State, clock: Clock, root: Path, monkeypatch: pytest.MonkeyPatch) -> TableSite:
    monkeypatch.setattr(pipeline_tasks, "ROOT", f"file:{root}")
    chosen = Settings()
    return TableSite(
        state, clock, root, replace(chosen, dispatcher=replace(chosen.dispatcher, data=f"file:{root}"))
    )


def _with_id(field: pa.Field) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(field_id(field.name))})


def column(rows: Sequence[tuple[Any, ...]], at: int = 0) -> list[Any]:
    return [each[at] for each in rows]
