"""Listing: order, prefixes, pages, and that a list shows every earlier write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import pytest

from qo.store.port import ObjectStore
from qo.testing.conformance.effort import ConformanceTests


async def fill(store: ObjectStore, keys: Iterable[str]) -> None:
    await asyncio.gather(*(store.put(key, key.encode()) for key in keys))


async def list_keys(store: ObjectStore, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[str]:
    page = await store.list(prefix, start_after=start_after, limit=limit)
    return [entry.key for entry in page.entries]


class Lists(ConformanceTests):
    async def test_keys_are_listed_in_order_whatever_the_order_of_writing(
        self, store: ObjectStore, root: str
    ) -> None:
        names = ["f/0000000002/b", "0/0000000001/a", "f/0000000001/c", "f/0000000001/a", "a/9999999999/z", "Z/1/a"]
        await fill(store, [root + name for name in names])
        assert await list_keys(store, root) == [root + name for name in sorted(names)]

    async def test_keys_are_listed_in_the_order_of_their_bytes(self, store: ObjectStore, root: str) -> None:
        if not self.LISTS_BY_BYTES:
            pytest.skip("a known deviation of this server: it lists directory by directory")
        names = ["a!", "a-b", "a.b", "a/b", "a0", "aZ", "a_", "aé", "a\uff5e", "a\U0001f600"]
        await fill(store, [root + name for name in reversed(names)])
        assert await list_keys(store, root) == [root + name for name in names]

    async def test_an_entry_tells_of_its_object(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"older and longer")
        result = await store.put(f"{root}a", b"four")
        (entry,) = (await store.list(root)).entries
        assert (entry.key, entry.etag, entry.size) == (f"{root}a", result.etag, 4)
        assert entry.modified.utcoffset() == timedelta(0)
        assert abs(entry.modified - await store.now()) < timedelta(minutes=1)

    async def test_a_prefix_selects_what_begins_with_it(self, store: ObjectStore, root: str) -> None:
        await fill(store, [root + name for name in ("a/1", "a/2", "ab/1", "b/1")])
        assert await list_keys(store, f"{root}a/") == [f"{root}a/1", f"{root}a/2"]
        assert await list_keys(store, f"{root}a") == [f"{root}a/1", f"{root}a/2", f"{root}ab/1"]
        assert await list_keys(store, f"{root}b/1") == [f"{root}b/1"]

    async def test_a_prefix_of_nothing_lists_nothing(self, store: ObjectStore, root: str) -> None:
        await fill(store, [f"{root}a", f"{root}c"])
        page = await store.list(f"{root}b")
        assert list(page.entries) == []
        assert page.truncated is False

    async def test_start_after_is_exclusive(self, store: ObjectStore, root: str) -> None:
        await fill(store, [root + name for name in ("a", "b", "c")])
        assert await list_keys(store, root, start_after=f"{root}b") == [f"{root}c"]
        assert await list_keys(store, root, start_after=f"{root}c") == []

    async def test_start_after_need_not_exist(self, store: ObjectStore, root: str) -> None:
        await fill(store, [root + name for name in ("d/a", "d/c", "d/e")])
        assert await list_keys(store, f"{root}d/", start_after=f"{root}d/b") == [f"{root}d/c", f"{root}d/e"]
        assert len(await list_keys(store, f"{root}d/", start_after=f"{root}c")) == 3
        assert await list_keys(store, f"{root}d/", start_after=f"{root}e") == []
        assert await list_keys(store, f"{root}d/", start_after=f"{root}d/~") == []

    async def test_a_page_is_truncated_only_if_there_is_more(self, store: ObjectStore, root: str) -> None:
        await fill(store, [root + name for name in ("a", "b", "c")] + [f"{root[:-1]}~/other"])
        assert (await store.list(root, limit=2)).truncated is True
        assert (await store.list(root, limit=3)).truncated is False
        assert (await store.list(root, limit=4)).truncated is False
        assert (await store.list(root, start_after=f"{root}a", limit=2)).truncated is False
        assert await list_keys(store, root, limit=2) == [f"{root}a", f"{root}b"]

    @pytest.mark.parametrize("limit", [1, 3, 7])
    async def test_pages_together_are_the_whole(self, store: ObjectStore, root: str, limit: int) -> None:
        keys = [f"{root}{number % 3}/{number:04d}" for number in range(14)]
        await fill(store, keys)
        listed_keys: list[str] = []
        truncated = True
        while truncated:
            page = await store.list(root, start_after=listed_keys[-1] if listed_keys else "", limit=limit)
            assert 0 < len(page.entries) <= limit
            listed_keys += [entry.key for entry in page.entries]
            truncated = page.truncated
        assert listed_keys == sorted(keys) == await list_keys(store, root)

    async def test_a_list_shows_every_write_before_it(self, store: ObjectStore, root: str) -> None:
        for number in range(10):
            await store.put(f"{root}{number}", b"")
            assert len(await list_keys(store, root)) == number + 1
        for number in range(10):
            await store.delete(f"{root}{number}")
            assert len(await list_keys(store, root)) == 9 - number
