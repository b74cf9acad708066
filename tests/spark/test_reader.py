"""qo.read: a dataset in anyone's session, pinned, as of now or of a version."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import qo
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.state import topology, upgrade
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.versions import cutover
from qo.dispatcher.views import reading as known
from qo.errors import NotFound, UsageError
from qo.spark.io import writing
from qo.spark.io.native import LocalFiles
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, deployed, edited, job, live, source, staged
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

FILES = LocalFiles()
SHOP = dag(
    "shop",
    source("orders", runtime="python", operator="shop.feed:run"),
    job("clean", reads="orders"),
    publish={"orders": "orders"},
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    upgrade.upgrade(state)
    yield Shop(state, f"file:{tmp_path / 'data'}", deployed(state, SHOP))
    state.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        dispatcher=DispatcherSettings(
            state=f"sqlite:{tmp_path / 'state.db'}",
            secrets_dir=str(tmp_path / "secrets"),
            data=f"file:{tmp_path / 'data'}",
        )
    )


def commit(shop: Shop, spark: SparkSession, key: str, run: str, *ids: int) -> int:
    """A partition with these ids; the version that this made."""
    held, attempt = shop.begin("orders", f"{key}-{run}")
    frame = spark.createDataFrame([(each,) for each in ids], "id long")
    writing.write(spark, frame, attempt.output(), FILES, [], attempt.work)
    attempt.output().describe(partition_key=key)
    shop.commit(held, attempt)
    with shop.state.read() as tx:
        return known.pieces(tx, "orders").revision or 0


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def test_a_frame_shows_what_was_committed_when_it_was_made_and_a_version_what_was_then(
    shop: Shop, spark: SparkSession, settings: Settings
) -> None:
    with pytest.raises(UsageError, match="'orders' has never had data"):
        qo.read(spark, "orders", settings=settings)
    with pytest.raises(UsageError, match="version is -1"):
        qo.read(spark, "orders", version=-1, settings=settings)
    first = commit(shop, spark, "p", "1", 1, 2)
    before = qo.read(spark, "orders", settings=settings)
    second = commit(shop, spark, "q", "1", 3)
    third = commit(shop, spark, "p", "2", 10)  # In place of the first.
    assert ids(before) == [1, 2]
    assert ids(qo.read(spark, "shop.orders", settings=settings)) == [3, 10]
    for version, found in ((first, [1, 2]), (second, [1, 2, 3]), (third, [3, 10])):
        assert ids(qo.read(spark, "orders", version=version, settings=settings)) == found
    with pytest.raises(NotFound, match=f"orders has no version {third + 1} yet: its latest is {third}"):
        qo.read(spark, "orders", version=third + 1, settings=settings)
    with pytest.raises(NotFound, match=f"'orders' had no data yet at version {first - 1}"):
        qo.read(spark, "orders", version=first - 1, settings=settings)
    with pytest.raises(NotFound, match="there is no dataset 'order'"):
        qo.read(spark, "order", settings=settings)


def test_a_version_of_a_generation_that_is_no_longer_current_is_still_read(
    shop: Shop, spark: SparkSession, settings: Settings
) -> None:
    old = commit(shop, spark, "p", "1", 1)
    was = live(shop.topology, "shop.orders").outputs[0].generation_id
    number = staged(shop.state, edited(SHOP, "orders", config={"more": True})).version
    with shop.state.write() as tx:
        cutover.activate(tx, "shop", number, "tests", force=True)
        shop.topology = topology.load(tx)
    assert live(shop.topology, "shop.orders").outputs[0].generation_id != was
    commit(shop, spark, "p", "2", 2)
    assert ids(qo.read(spark, "orders", settings=settings)) == [2]
    assert ids(qo.read(spark, "orders", version=old, settings=settings)) == [1]


def test_all_pages_of_the_dispatchers_answer_show_one_state(
    shop: Shop, spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    for at in range(5):
        commit(shop, spark, f"p{at}", "1", at)
    with shop.state.read() as tx:
        page = known.pieces(tx, "orders", limit=2)
        found = list(page.pieces)
    commit(shop, spark, "p3", "2", 33)
    while page.after is not None:
        with shop.state.read() as tx:
            page = known.pieces(
                tx,
                "orders",
                revision=page.revision,
                generation_id=page.generation_id,
                after=page.after,
                limit=2,
            )
        found += page.pieces
    assert [piece.partition_key for piece in found] == [f"p{at}" for at in range(5)]
    assert found[3].revision <= (page.revision or 0)
    with listening(shop.state, tmp_path) as (url, token):
        asked = replace(
            settings, dispatcher=replace(settings.dispatcher, url=url, token=token, state="sqlite:none")
        )
        assert ids(qo.read(spark, "orders", settings=asked)) == [0, 1, 2, 4, 33]
        with pytest.raises(NotFound, match="there is no dataset 'order'"):
            qo.read(spark, "order", settings=asked)


@contextmanager
def listening(state: State, directory: Path) -> Iterator[tuple[str, str]]:
    """A dispatcher in a thread of its own; its address, and a reader's token."""
    started: list[tuple[str, str]] = []
    up, down = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(state, directory) as dispatcher:
            started.append((dispatcher.addresses.public, dispatcher.tokens["reader"]))
            up.set()
            await asyncio.to_thread(down.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(30)
        yield started[0]
    finally:
        down.set()
        thread.join()


def test_spark_is_loaded_only_by_who_reads() -> None:
    code = "import sys, qo; assert 'read' in qo.__all__; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_nothing_is_installed_reading_says_so_and_creates_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"there is no installation of qo here.*QO_STATE"):
        qo.read(spark, "orders")
    assert list(tmp_path.iterdir()) == []
