"""A store that an earlier qo has written is converted when it is opened, and nothing in it is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from qo.store.embedded import etag_of
from qo.store.local import LocalStore
from qo.store.sqlite_file import FILE

pytestmark = pytest.mark.fast

FORMAT_1 = """
    CREATE TABLE heads (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, previous INTEGER, etag TEXT,
        modified INTEGER NOT NULL, body BLOB
    );
    CREATE TABLE archive (
        version INTEGER PRIMARY KEY, previous INTEGER, key TEXT NOT NULL, etag TEXT, modified INTEGER NOT NULL,
        body BLOB
    );
    CREATE TABLE counter (last_version INTEGER NOT NULL);
    INSERT INTO counter VALUES (9);
    PRAGMA user_version = 1;
    PRAGMA journal_mode = WAL;
"""
ONE, TWO, THREE, HINT = b"one", b"two", b"three", b"\x00\xff"
Row = tuple[str, int, int | None, bytes | None]
ARCHIVE: list[Row] = [("tasks/a", 1, None, ONE), ("tasks/b", 2, None, ONE), ("tasks/a", 4, 1, TWO)]
HEADS: list[Row] = [
    ("tasks/a", 7, 4, THREE),
    ("tasks/b", 6, 2, None),
    ("ready/a", 8, None, HINT),
    ("tasks/c", 9, None, b""),
]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / FILE)) as earlier:
        earlier.executescript(FORMAT_1)
        for table, rows in (("archive", ARCHIVE), ("heads", HEADS)):
            for key, version, previous, body in rows:
                etag = None if body is None else etag_of(body)
                earlier.execute(
                    f"INSERT INTO {table} (key, version, previous, etag, modified, body) VALUES (?, ?, ?, ?, ?, ?)",
                    (key, version, previous, etag, version * 1_000_000, body),
                )
        earlier.commit()
    return tmp_path


async def test_objects_and_their_history_are_as_before(path: Path) -> None:
    for _ in range(2):  # Converted, and opened again.
        store = await LocalStore.open(path, forget=("ready/",))
        page = await store.list("")
        assert [(each.key, each.size, each.modified.timestamp()) for each in page.entries] == [
            ("ready/a", 2, 8.0),
            ("tasks/a", 5, 7.0),
            ("tasks/c", 0, 9.0),
        ]
        for key, body in (("tasks/a", THREE), ("tasks/b", None), ("tasks/c", b""), ("ready/a", HINT)):
            found = await store.get(key)
            assert (found and found.body) == body
        assert [each.version for each in await store.versions("tasks/a")] == ["7", "4", "1"]
        assert [(each.version, each.deleted) for each in await store.versions("tasks/b")] == [
            ("6", True),
            ("2", False),
        ]
        old = await store.get("tasks/a", version="4")
        assert old is not None
        assert old.body == TWO
        await store.close()


async def test_a_converted_store_is_written_as_a_new_one(path: Path) -> None:
    store = await LocalStore.open(path, forget=("ready/",))
    written = await store.put("tasks/a", b"four", if_match=etag_of(THREE))
    assert written.version == "10"
    await store.put("tasks/b", TWO, if_absent=True)
    assert len(await store.versions("tasks/b")) == 3
    await store.put("ready/a", b"another", if_match=etag_of(HINT))
    await store.delete("ready/a")
    assert await store.versions("ready/a") == []
    await store.delete("tasks/a", version="4")
    assert [each.version for each in await store.versions("tasks/a")] == ["10", "7", "1"]
    await store.close()
    with closing(sqlite3.connect(path / FILE)) as file:
        assert file.execute("SELECT count(*) FROM versions WHERE key = 'ready/a'").fetchone() == (0,)


async def test_opened_without_prefixes_to_forget_it_keeps_the_history_of_all(path: Path) -> None:
    store = await LocalStore.open(path)
    await store.put("ready/a", b"another")
    assert [each.version for each in await store.versions("ready/a")] == ["10", "8"]
    await store.close()
