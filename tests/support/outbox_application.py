"""The database of an application with an outbox, on SQLite and PostgreSQL. Import the fixture in a ``conftest.py``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qo import outbox
from qo.core import keys
from qo.outbox.relay import Relay
from qo.queue.queue import Queue
from support.stores.queues import all_tasks, keys_under


@dataclass
class Application:
    """Its database, and a connection to it."""

    url: str
    sqlalchemy_url: str
    connect: Callable[[], Any]
    mark: str

    def insert(self, *tasks: Any, group: str | None = None) -> None:
        with closing(self.connect()) as connection:
            for each in tasks:
                outbox.submit(connection, "echo", each, group=group)
            connection.commit()

    def rows(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT id, task, parked_reason, claimed_by FROM qo_outbox ORDER BY id")

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(sql.replace("?", self.mark), values)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return found


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.fast), "postgres"])
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Application:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        made = Application(f"sqlite:{path}", f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=10), "?")
    else:
        url: str = request.getfixturevalue("postgres_server").make_database()
        made = Application(
            url, url.replace("postgresql:", "postgresql+psycopg:"), lambda: psycopg.connect(url), "%s"
        )
    with closing(made.connect()) as connection:
        outbox.create_table(connection)
        outbox.create_table(connection)  # There is nothing to do the second time.
        connection.commit()
    return made


async def relay_all(application: Application, queue: Queue, **how: Any) -> Relay:
    relay = Relay(application.url, queue, **how)
    await relay.run(asyncio.Event(), once=True)
    return relay


async def inputs(queue: Queue) -> list[Any]:
    return sorted((task.input for task in await all_tasks(queue.store)), key=str)


async def has_tasks(queue: Queue, count: int) -> bool:
    return len(await keys_under(queue.store, keys.TASKS)) == count
