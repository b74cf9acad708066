"""Streams with processes: kills, pauses and absent dispatchers lose and double no row."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import (
    Piece,
)
from qo.dispatcher.state import schema
from support.dispatcher.sites import DAG, Process
from support.process_family import pause, resume
from support.spark.gates import Gate
from support.spark.sites import Plant, Row, job, pipeline, planted, rows_of
from support.stores.queues import until

pytestmark = pytest.mark.spark


COLUMNS = [{"name": "id", "type": "long"}, {"name": "delay", "type": "int"}]


def air(directory: Path) -> str:
    """A stream, and a job that reads each segment once."""
    config = {"source": "files", "path": f"file:{directory}", "format": "json", "columns": COLUMNS}
    rows = {
        "name": "rows",
        "activation": "source",
        "runtime": "spark",
        "operator": "stream",
        "config": config | {"trigger_seconds": 0},
        "source": {"kind": "always_on"},
        "outputs": 1,
    }
    query = "SELECT count(*) AS n, sum(id) AS total FROM rows"
    return pipeline(
        DAG, [rows, job("sums", "sql", "rows", config={"query": query}, execution_strategy="PerUpdate")]
    )


@dataclass
class Shore:
    """A stream of the files of a directory, on a site of its own."""

    plant: Plant

    @property
    def incoming(self) -> Path:
        return self.plant.site.directory / "incoming"

    def drop(self, *ids: int) -> None:
        path = self.plant.site.directory / f"{ids[0]}"
        path.write_text("".join(json.dumps({"id": each, "delay": 0}) + "\n" for each in ids))
        path.rename(self.incoming / f"{ids[0]}.json")

    def committed(self, name: str) -> list[dict[str, Any]]:
        commits, datasets = schema.commits, schema.datasets
        query = sa.select(commits).join(datasets, datasets.c.id == commits.c.dataset_id)
        with self.plant.site.state.read() as tx:
            return [
                dict(each) for each in tx.all(query.where(datasets.c.job == name).order_by(commits.c.revision))
            ]

    def rows(self, name: str) -> list[Row]:
        """Of all that is committed."""
        pieces = [
            Piece(revision=each["revision"], location=each["location"], files=each["files"] or [])
            for each in self.committed(name)
        ]
        return rows_of(pieces)

    async def there(self, rows: int, at: Process) -> None:
        async def enough() -> bool:
            assert at.process.returncode is None, at.said
            await asyncio.to_thread(self.plant.site.hasten)
            return sum(each["rows"] for each in await asyncio.to_thread(self.committed, "rows")) >= rows

        await until(enough, within_s=180, every_s=0.05)

    async def became(self, state: str) -> None:
        async def seen() -> bool:
            with self.plant.site.state.read() as tx:
                return tx.value(sa.select(schema.sources.c.state)) == state

        await until(seen, within_s=60)


@pytest.mark.long
@pytest.mark.timeout(400)  # Two workers start their own sessions.
async def test_no_kill_nor_pause_nor_dispatcher_that_is_away_loses_or_doubles_a_row(tmp_path: Path) -> None:
    async with planted(tmp_path / "site") as plant:
        shore, gate = Shore(plant), Gate(plant.site.ports[1])
        shore.incoming.mkdir()
        async with gate.open() as url:
            first, second = await plant.workers("w1", "w2", QO_DISPATCHER_INTERNAL_URL=url)
            pause(second.process.pid)  # Its turn comes later.
            await plant.site.deploy(air(shore.incoming))
            shore.drop(1, 2)
            await shore.there(2, first)

            gate.closed = True
            shore.drop(3, 4)
            async with asyncio.timeout(60):
                await gate.seen.wait()  # It is written, and not committed.
            first.signal(signal.SIGKILL)
            await first.code()
            gate.closed = False
            await asyncio.to_thread(plant.site.lapse, "w1")
            resume(second.process.pid)
            await shore.there(4, second)

            plant.serving.signal(signal.SIGKILL)
            await plant.serving.code()
            shore.drop(5)
            shore.drop(6)
            async with asyncio.timeout(60):
                await gate.missed.wait()  # Nobody is there to commit to.
            await plant.serve()
            await shore.there(6, second)

            await plant.site.client.post(f"/v1/dags/{DAG}.rows/pause", {"reason": "enough"})
            await shore.became("stopped")
            assert plant.site.attempts(plant.site.task("rows")["id"])[-1] == "cancelled"  # Nothing was lost.
            shore.drop(7)
            assert len(shore.rows("rows")) == 6
            await plant.site.client.post(f"/v1/dags/{DAG}.rows/resume")
            await shore.there(7, second)

            async def summed() -> bool:
                return sum(n for n, _ in await asyncio.to_thread(shore.rows, "sums")) >= 7

            await until(summed, within_s=90)
        assert sorted(id_ for id_, _ in shore.rows("rows")) == [1, 2, 3, 4, 5, 6, 7]
        assert sum(total for _, total in shore.rows("sums")) == 28
        cursors = [each["cursor"] for each in shore.committed("rows")]
        assert cursors == sorted(set(cursors))
