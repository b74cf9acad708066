"""Fixtures that many tests share. A server is started when the first test asks for it.

The imports are where they are needed, so that fast tests do not wait for what only servers need.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from suite.order import mix_files
from suite.scheduling import pytest_xdist_make_scheduler

if TYPE_CHECKING:
    from qo.dispatcher.state.database import State
    from qo.store.s3 import S3Store
    from support.dispatcher.fresh_states import FreshStates
    from support.dispatcher.state_pool import StatePool
    from support.dispatcher.states import Clock
    from support.servers.postgres import PostgresServer
    from support.servers.s3 import S3Server

__all__ = ["pytest_xdist_make_scheduler"]  # A hook is found here by its name.

# How long an example takes says more of the machine than of the code. Each run draws others; make prove draws many.
settings.register_profile("qo", deadline=None, max_examples=500 if os.environ.get("PROVE") else 50)
settings.load_profile("qo")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("randomly"):  # Else the order is drawn.
        ranks = {
            path: rank for rank, path in enumerate(mix_files(list(dict.fromkeys(item.path for item in items))))
        }
        items.sort(key=lambda item: ranks[item.path])


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is shown with its source, which is parsed for it. Before Python 3.11.5, a finalizer that the garbage
    collector calls meanwhile can make that fail, and then the whole run ends without a word of the test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, one for the whole run."""
    from support.servers.s3 import start_seaweed

    server = start_seaweed(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A second implementation of S3, in memory; it believes any credentials."""
    from support.servers.s3 import start_moto

    server = start_moto(tmp_path_factory.mktemp("moto"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, one for the whole run."""
    from tempfile import TemporaryDirectory

    from support.servers.postgres import memory_directory, start_postgres

    # Not below pytest's own directory: the next session to start closes that to other users, and root's server is one.
    with (
        TemporaryDirectory(prefix="qo-postgres-") as directory,
        TemporaryDirectory(prefix="qo-postgres-", dir=memory_directory()) as data,
    ):
        server = start_postgres(Path(directory), data=Path(data) / "data")
        yield server
        server.stop()


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    """A fresh versioned bucket."""
    return s3_server.make_bucket()


@pytest.fixture
def s3_env(s3_server: S3Server, s3_bucket: str) -> dict[str, str]:
    """The variables that lead qo to a fresh versioned bucket."""
    return s3_server.environment(s3_bucket)


@pytest.fixture
async def s3_store(s3_server: S3Server, s3_bucket: str) -> AsyncIterator[S3Store]:
    """An open store on a fresh versioned bucket."""
    store = await s3_server.open_store(s3_bucket)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def state_pool(postgres_server: PostgresServer) -> Iterator[StatePool]:
    from support.dispatcher.state_pool import StatePool

    pool = StatePool(postgres_server)
    yield pool
    pool.close()


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.fast), "postgres"])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty state database is; no tables yet, unless ``state`` is asked for, too. See ``states``."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'state.db'}"
    elif "state" not in request.fixturenames:
        yield request.getfixturevalue("postgres_server").make_database()
    else:
        with request.getfixturevalue("state_pool").borrowed() as url:
            yield url


@pytest.fixture
def state_clock() -> Clock:
    """The clock of ``state``, which a test can move on."""
    from support.dispatcher.states import Clock

    return Clock()


@pytest.fixture
def state(state_url: str, state_clock: Clock) -> Iterator[State]:
    """An open state database with its tables, once on SQLite and once on PostgreSQL."""
    from support.dispatcher.states import opened

    with opened(state_url, state_clock) as state:
        yield state


PROVING = pytest.mark.timeout(
    1800 if os.environ.get("PROVE") else 120
)  # Hundreds of examples, each on a database.


@pytest.fixture(
    params=[pytest.param("sqlite", marks=[pytest.mark.fast, PROVING]), pytest.param("postgres", marks=PROVING)]
)
def fresh_states(request: pytest.FixtureRequest) -> FreshStates:
    """An empty state database for every example of a property. See ``fresh_states``."""
    from support.dispatcher.fresh_states import POSTGRES_SHARE, FreshStates, borrow_sqlite_url

    if request.param == "sqlite":
        return FreshStates(borrow_sqlite_url)
    return FreshStates(request.getfixturevalue("state_pool").borrowed, POSTGRES_SHARE)
