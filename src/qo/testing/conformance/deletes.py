"""Deleting: one, many, under a condition."""

from __future__ import annotations

import pytest

from qo.errors import PreconditionFailed
from qo.store.port import Deletion, ObjectStore
from qo.testing.conformance.effort import ConformanceTests


class Deletes(ConformanceTests):
    async def test_a_deleted_key_reads_as_none(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"one")
        await store.delete(f"{root}a")
        assert await store.get(f"{root}a") is None

    async def test_deleting_twice_is_deleting_once(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"one")
        await store.delete(f"{root}a")
        await store.delete(f"{root}a")
        await store.delete(f"{root}never")
        assert await store.get(f"{root}a") is None
        assert list((await store.list(root)).entries) == []

    async def test_a_conditional_delete_happens_only_if_the_key_is_unmoved(
        self, store: ObjectStore, root: str
    ) -> None:
        first = await store.put(f"{root}a", b"one")
        second = await store.put(f"{root}a", b"two")
        with pytest.raises(PreconditionFailed):
            await store.delete(f"{root}a", if_match=first.etag)
        assert await store.get(f"{root}a") is not None
        await store.delete(f"{root}a", if_match=second.etag)
        assert await store.get(f"{root}a") is None

    async def test_a_conditional_delete_of_what_is_gone_is_done(self, store: ObjectStore, root: str) -> None:
        result = await store.put(f"{root}a", b"one")
        await store.delete(f"{root}a")
        await store.delete(f"{root}a", if_match=result.etag)
        await store.delete(f"{root}never", if_match=result.etag)
        assert await store.get(f"{root}a") is None

    async def test_many_are_deleted_at_once_and_missing_ones_do_no_harm(
        self, store: ObjectStore, root: str
    ) -> None:
        for name in ("a", "b", "c", "d"):
            await store.put(root + name, b"one")
        await store.delete_many([Deletion(root + name) for name in ("a", "never", "c")])
        assert [entry.key for entry in (await store.list(root)).entries] == [f"{root}b", f"{root}d"]
        await store.delete_many([])

    async def test_one_version_is_deleted_for_good_by_itself(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        one, two = [await store.put(key, body) for body in (b"one", b"two")]
        await store.delete(key, version=one.version)
        await store.delete(key, version=one.version)
        assert [each.version for each in await store.versions(key)] == [two.version]
        await store.delete(key, version=two.version)
        assert await store.get(key) is None
        assert list(await store.versions(key)) == [], "and no delete marker stays"

    async def test_a_version_is_deleted_for_good(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        one, two, three = [await store.put(key, body) for body in (b"one", b"two", b"three")]
        await store.delete_many([Deletion(key, two.version), Deletion(key, two.version)])
        assert await store.get(key, version=two.version) is None
        assert [each.version for each in await store.versions(key)] == [three.version, one.version]
        stored = await store.get(key)
        assert stored is not None
        assert stored.body == b"three"

    async def test_once_the_latest_version_is_removed_the_one_before_is_current(
        self, store: ObjectStore, root: str
    ) -> None:
        key = f"{root}a"
        one, two = [await store.put(key, body) for body in (b"one", b"two")]
        await store.delete_many([Deletion(key, two.version)])
        stored = await store.get(key)
        assert stored is not None
        assert (stored.body, stored.version) == (b"one", one.version)
        assert [entry.etag for entry in (await store.list(root)).entries] == [one.etag]
        await store.put(key, b"three", if_match=one.etag)

    async def test_without_its_delete_marker_a_key_is_back(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        await store.put(key, b"one")
        await store.delete(key)
        (marker, _) = await store.versions(key)
        await store.delete_many([Deletion(key, marker.version)])
        stored = await store.get(key)
        assert stored is not None
        assert stored.body == b"one"
        assert [entry.key for entry in (await store.list(root)).entries] == [key]

    async def test_a_key_whose_rebirth_is_removed_stays_deleted(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        await store.put(key, b"one")
        await store.delete(key)
        reborn = await store.put(key, b"two")
        await store.delete_many([Deletion(key, reborn.version)])
        assert await store.get(key) is None
        assert list((await store.list(root)).entries) == []
        assert [(each.deleted, each.latest) for each in await store.versions(key)] == [
            (True, True),
            (False, False),
        ]

    async def test_a_key_without_versions_left_was_never_there(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        await store.put(key, b"one")
        await store.put(key, b"two")
        await store.delete(key)
        await store.delete_many([Deletion(key, each.version) for each in await store.versions(key)])
        assert list(await store.versions(key)) == []
        assert await store.get(key) is None
        await store.put(key, b"three", if_absent=True)
