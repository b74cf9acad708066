"""A dispatcher that is killed anywhere while it writes a table, or races another, leaves a table that is right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qo.dispatcher.engine.loops import table_keeper
from qo.dispatcher.state.database import State
from qo.store.local_directory import LocalDirectory
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import Clock
from support.dispatcher.tables import TableSite, table_site

SHOP = dag("shop", source("orders", drift="add"), publish={"orders": "orders", "again": "orders"})
STEPS = ("create", "update", "_store", "_store_hint", "add_rows")


class Killed(BaseException):
    """Nothing handles it, as nothing handles SIGKILL."""


class Fuse:
    """Ends the process at one of its writes, before or after it."""

    def __init__(self, writes: int, *, after: bool) -> None:
        self.writes, self.after = writes, after

    def burn(self, at_end: bool) -> None:
        if at_end == self.after:
            self.writes -= 1
            if self.writes == 0:
                raise Killed


@pytest.fixture
def site(state: State, state_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSite:
    deployed(state, SHOP)
    return table_site(state, state_clock, tmp_path, monkeypatch)


def killed_at(monkeypatch: pytest.MonkeyPatch, site: TableSite, fuse: Fuse) -> bool:
    class Directory(LocalDirectory):
        async def create(self, path: str, body: bytes) -> bool:
            fuse.burn(False)
            made = await super().create(path, body)
            fuse.burn(True)
            return made

        async def update(self, path: str, change: Any) -> bool:
            is_hint = path.endswith(table_keeper.HINT)
            if is_hint:
                fuse.burn(False)
            made = await super().update(path, change)
            if is_hint:
                fuse.burn(True)
            return made

    async def open_directory(*_: Any) -> Directory:
        return Directory(site.root)

    with monkeypatch.context() as patched:
        patched.setattr(table_keeper, "open_directory", open_directory)
        for name in ("_store", "_store_hint"):
            real = getattr(table_keeper, name)

            def store(*args: Any, real: Any = real) -> None:
                fuse.burn(False)
                real(*args)
                fuse.burn(True)

            patched.setattr(table_keeper, name, store)
        try:
            site.keep()
        except Killed:
            return True
        return False


def check(site: TableSite, expected: Sequence[int]) -> None:
    """The table shows the last version, all its snapshots can be read, and the hint names it."""
    assert site.rows() == [(each,) for each in expected]
    table, record = site.table(), site.record()
    assert [each.timestamp_ms for each in table.history()] == sorted(each.timestamp_ms for each in table.history())
    for snapshot in table.snapshots():
        summary: Any = snapshot.summary
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == int(summary["total-records"])
    hint = (site.root / record.dataset_id / "metadata" / table_keeper.HINT).read_text()
    assert hint == f"{record.metadata_version}\n"
    assert site.record("again").metadata_location == record.metadata_location


def test_a_dispatcher_that_is_killed_at_any_write_is_followed_by_one_that_completes_the_table(
    site: TableSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.commit({"id": [0]}, "a")
    number, kills = 0, 0
    for after in (False, True):
        for writes in range(1, 12):
            number += 1
            site.commit({"id": [number]}, "a")
            kills += killed_at(monkeypatch, site, Fuse(writes, after=after))
            if number % 2:  # The next one begins with a later version, or with the same.
                number += 1
                site.commit({"id": [number]}, "a")
            site.keep()
            site.keep()
            check(site, [number])
    assert kills >= 10


def test_dispatchers_that_write_one_table_at_once_agree(site: TableSite) -> None:
    async def together() -> None:
        for at in range(4):
            await asyncio.to_thread(site.commit, {"id": [at]}, "ab"[at % 2])
            site.clock.advance(10)
            ticks = (table_keeper.tick(site.state, site.settings) for _ in range(3))
            await asyncio.gather(*ticks)

    asyncio.run(together())
    site.keep()
    check(site, [2, 3])
    assert len(site.table().snapshots()) == 4
