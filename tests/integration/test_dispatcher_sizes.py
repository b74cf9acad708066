"""How large the state database is, table by table, on both databases."""

from __future__ import annotations

import sqlalchemy as sa

from qo.api.contract.task import EventBody
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.state.sizes import TASKS_MIN, DatabaseSize, TableSize, measure
from support.dispatcher.pipelines import dag, deployed, source


def test_each_table_says_how_many_rows_and_bytes_it_has(state: State) -> None:
    deployed(state, dag("shop", source("orders")))
    with state.write() as tx:
        events = [EventBody(partition_key=f"p{number}") for number in range(300)]
        emission.emit(tx, "shop", "orders", key="k", events=events, by="tests")
    measured = _measure_analysed(state)
    by_name = {each.name: each for each in measured.tables}
    assert by_name.keys() == schema.metadata.tables.keys()
    assert (by_name["events"].rows, by_name["tasks"].rows) == (300, 1)
    for name in ("events", "commits"):
        assert (by_name[name].bytes or 0) > 0
        assert (by_name[name].index_bytes or 0) > 0
    assert sum((each.bytes or 0) + (each.index_bytes or 0) for each in measured.tables) <= measured.bytes
    sizes = [(each.bytes or 0) + (each.index_bytes or 0) for each in measured.tables]
    assert sizes == sorted(sizes, reverse=True)


def _measure_analysed(state: State) -> DatabaseSize:
    """On PostgreSQL, with statistics: those of a connection that wrote arrive when it is idle, maybe after an ANALYZE,
    and are then counted a second time."""
    if state.engine.dialect.name != "postgresql":
        return measure(state)
    with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(200):
            connection.execute(sa.text("ANALYZE"))
            measured = measure(state)
            rows = {each.name: each.rows for each in measured.tables}
            if (rows["events"], rows["tasks"]) == (300, 1):
                break
            connection.execute(sa.text("SELECT pg_sleep(0.05)"))
    return measured


def test_bytes_per_million_tasks_are_told_of_enough_tasks_only() -> None:
    def of(tasks: int) -> DatabaseSize:
        return DatabaseSize(2_000_000, [TableSize("tasks", tasks, 1, 1)])

    assert of(TASKS_MIN - 1).bytes_per_million_tasks is None
    assert of(TASKS_MIN).bytes_per_million_tasks == 2_000_000_000
