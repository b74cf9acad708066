"""Versions: what a key was before."""

from __future__ import annotations

import pytest

from qo.errors import PreconditionFailed
from qo.store.port import Deletion, ObjectStore, VersionMark
from qo.testing.conformance.effort import ConformanceTests


class History(ConformanceTests):
    async def test_the_store_says_that_it_keeps_versions(self, store: ObjectStore) -> None:
        assert await store.versioned() is True

    async def test_a_key_that_was_never_written_has_no_versions(self, store: ObjectStore, root: str) -> None:
        assert list(await store.versions(f"{root}never")) == []

    async def test_versions_come_newest_first(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        results = [await store.put(key, body) for body in (b"one", b"two", b"three")]
        versions = await store.versions(key)
        assert [each.version for each in versions] == [each.version for each in reversed(results)]
        assert [each.etag for each in versions] == [each.etag for each in reversed(results)]
        assert [each.size for each in versions] == [5, 3, 3]
        assert [each.latest for each in versions] == [True, False, False]
        assert not any(each.deleted for each in versions)
        instants = [each.modified for each in versions]
        assert instants == sorted(instants, reverse=True)

    async def test_every_version_can_be_read(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        for body in (b"one", b"", b"three"):
            result = await store.put(key, body)
            assert result.version is not None
        bodies: list[bytes] = []
        for each in await store.versions(key):
            stored = await store.get(key, version=each.version)
            assert stored is not None
            assert (stored.etag, stored.version) == (each.etag, each.version)
            bodies.append(stored.body)
        assert bodies == [b"three", b"", b"one"]

    async def test_a_delete_leaves_a_marker_and_the_versions(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        one = await store.put(key, b"one")
        await store.delete(key)
        marker, before = await store.versions(key)
        assert (marker.deleted, marker.latest) == (True, True)
        assert (before.deleted, before.latest, before.version) == (False, False, one.version)
        assert await store.get(key) is None
        assert await store.get(key, version=marker.version) is None
        stored = await store.get(key, version=before.version)
        assert stored is not None
        assert stored.body == b"one"

    async def test_a_key_written_again_keeps_what_was_before_its_deletion(
        self, store: ObjectStore, root: str
    ) -> None:
        key = f"{root}a"
        await store.put(key, b"one")
        await store.delete(key)
        await store.put(key, b"two")
        versions = await store.versions(key)
        assert [each.deleted for each in versions] == [False, True, False]
        assert [each.latest for each in versions] == [True, False, False]

    async def test_a_refused_write_leaves_no_version(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        first = await store.put(key, b"one")
        await store.put(key, b"two")
        with pytest.raises(PreconditionFailed):
            await store.put(key, b"three", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.put(key, b"three", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.delete(key, if_match=first.etag)
        assert len(await store.versions(key)) == 2

    async def test_keys_that_begin_alike_do_not_share_versions(self, store: ObjectStore, root: str) -> None:
        for name, count in (("a/b", 1), ("a/bc", 2), ("a/b.json", 3)):
            for number in range(count):
                await store.put(root + name, b"%d" % number)
        assert len(await store.versions(f"{root}a/b")) == 1
        assert len(await store.versions(f"{root}a/bc")) == 2
        assert len(await store.versions(f"{root}a/b.json")) == 3
        assert list(await store.versions(f"{root}a/")) == []

    async def test_a_version_of_another_key_is_not_found(self, store: ObjectStore, root: str) -> None:
        result = await store.put(f"{root}a", b"one")
        await store.put(f"{root}b", b"two")
        assert await store.get(f"{root}b", version=result.version) is None

    async def test_no_version_is_left_out_however_many_there_are(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        results = [await store.put(key, b"%d" % number) for number in range(self.VERSIONS_MANY)]
        versions = await store.versions(key)
        assert [each.version for each in versions] == [each.version for each in reversed(results)]
        assert [each.latest for each in versions].count(True) == 1

    async def test_the_versions_of_many_keys_are_listed_in_order_newest_first(
        self, store: ObjectStore, root: str
    ) -> None:
        results = {
            name: [await store.put(root + name, b"%d" % number) for number in range(count)]
            for name, count in (("b/1", 2), ("a/2", 1), ("a/1", 3), ("c", 1))
        }
        expected = [(root + name, each.version) for name in ("a/1", "a/2", "b/1") for each in results[name][::-1]]
        page = await store.list_versions(root)
        listed = [(key, version.version) for key, version in page.entries]
        assert listed == [*expected, (f"{root}c", results["c"][0].version)]
        assert page.next is None
        assert [version.latest for _, version in page.entries] == [True, False, False, True, True, False, True]
        below = await store.list_versions(f"{root}a/")
        assert [key for key, _ in below.entries] == [f"{root}a/1"] * 3 + [f"{root}a/2"]
        assert [version for _, version in below.entries[:3]] == list(await store.versions(f"{root}a/1"))

    async def test_a_deleted_key_is_listed_among_the_versions(self, store: ObjectStore, root: str) -> None:
        for name in ("a", "b"):
            await store.put(root + name, b"one")
        await store.delete(f"{root}a")
        listed = [(key, version.deleted) for key, version in (await store.list_versions(root)).entries]
        assert listed == [(f"{root}a", True), (f"{root}a", False), (f"{root}b", False)]
        await store.delete_many([Deletion(f"{root}a", each.version) for each in await store.versions(f"{root}a")])
        assert [key for key, _ in (await store.list_versions(root)).entries] == [f"{root}b"]

    @pytest.mark.parametrize("limit", [1, 2, 4])
    async def test_pages_of_versions_together_are_the_whole(
        self, store: ObjectStore, root: str, limit: int
    ) -> None:
        for name, count in (("a", 3), ("b", 1), ("c", 2)):
            for number in range(count):
                await store.put(root + name, b"%d" % number)
        listed: list[tuple[str, str]] = []
        after: VersionMark | None = None
        while True:
            page = await store.list_versions(root, after=after, limit=limit)
            assert len(page.entries) <= limit
            listed += [(key, version.version) for key, version in page.entries]
            if (after := page.next) is None:
                break
        whole = (await store.list_versions(root)).entries
        assert listed == [(key, version.version) for key, version in whole]

    async def test_versions_are_listed_from_behind_a_key(self, store: ObjectStore, root: str) -> None:
        for name in ("a", "b", "d"):
            await store.put(root + name, b"one")
            await store.put(root + name, b"two")
        for after, keys in (("a", "bbdd"), ("b", "dd"), ("c", "dd"), ("d", "")):
            page = await store.list_versions(root, after=VersionMark(root + after))
            assert "".join(key.removeprefix(root) for key, _ in page.entries) == keys
