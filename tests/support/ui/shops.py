"""A pipeline that has something to tell on every page: what was made, what runs, what failed, and what is held back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import sqlalchemy as sa

from qo.api.contract.task import CheckBody, ColumnBody, Outcome
from qo.core.iceberg.iceberg_types import encode_bound
from qo.core.pipeline.file_stats import ColumnStats, FileStats, pack_stats
from qo.core.pipeline.pressure import Thresholds
from qo.dispatcher.engine.loops import pressure, release
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from support.dispatcher.pipeline_tasks import beat, claimed, feed, finish, output, route_all, tasks_of
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", max_attempts=1),
    job("daily", reads="clean", runtime="python"),
    job("alert", reads="daily", outputs=0),
    publish={"clean_orders": "clean"},
)
DAYS = [f"2026-03-{day:02}" for day in range(1, 7)]
COLUMNS = [
    ColumnBody(name="id", type="string"),
    ColumnBody(name="amount", type="double"),
    ColumnBody(name="day", type="date"),
]
ERROR = "AnalysisException: the column amount is missing"


@dataclass(frozen=True)
class Shop:
    made: str  # The run of clean for the first day; daily has gone on from it.
    failed: str
    running: str
    refused: str  # Its output was not good enough.


def open_shop(state: State) -> Shop:
    shop = deployed(state, SHOP)
    orders, clean, daily = (live(shop, f"shop.{name}") for name in ("orders", "clean", "daily"))
    for day in DAYS:
        feed(state, orders, day)
    route_all(state)
    runs = {each["partition_key"]: each["id"] for each in tasks_of(state, clean)}
    for n, day in enumerate(DAYS[:2]):
        held = claimed(state, runs[day])
        body = output(held, rows=1234, columns=COLUMNS).model_copy(update={"file_stats": measured(1234, n)})
        finish(state, held, outputs=[body], checks=[expectation(passed=True)])
    held = claimed(state, runs[DAYS[2]])
    finish(state, held, Outcome.FATAL, error=ERROR, traceback=f"Traceback:\n  clean.py\n{ERROR}")
    held = claimed(state, runs[DAYS[3]])
    refused = [output(held)]
    finish(
        state, held, Outcome.FATAL, error="not good enough", checks=[expectation(passed=False)], rejected=refused
    )
    held = claimed(state, runs[DAYS[4]])
    beat(state, held, {"phase": "writing", "tasks": {"done": 30, "total": 40}})
    route_all(state)
    (first,) = (each["id"] for each in tasks_of(state, daily) if each["partition_key"] == DAYS[0])
    held = claimed(state, first)
    finish(state, held, outputs=[output(held, rows=7)])
    route_all(state)
    release.tick(state, Limits())
    pressure.tick(state, Thresholds(depth=0))
    return Shop(runs[DAYS[0]], runs[DAYS[2]], runs[DAYS[4]], runs[DAYS[3]])


def measured(rows: int, nulls: int) -> bytes:
    """What a worker says of the one file of a day."""
    first, last = (encode_bound(text, "string", upper=True) for text in ("aa01", "zz99"))
    begin, end = (encode_bound(date(2026, 3, day), "date", upper=True) for day in (1, 2))
    columns = {
        "id": ColumnStats(4_000, rows, 0, first, last),
        "amount": ColumnStats(9_000, rows, nulls, None, None, -1.5, 99.25),
        "day": ColumnStats(80, rows, 0, begin, end),
    }
    return pack_stats({"part-0.parquet": FileStats(rows, 13_080, columns)})


def expectation(*, passed: bool) -> CheckBody:
    return CheckBody(
        output=0, name="not_null amount", kind="not_null", severity="fail", passed=passed, observed={"nulls": 3}
    )


def status_of(state: State, task_id: str) -> str:
    with state.read() as tx:
        return tx.value(sa.select(schema.tasks.c.status).where(schema.tasks.c.id == task_id))
