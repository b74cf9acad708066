"""Reading, writing, and writing under a condition; and the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import md5

import pytest

from qo.errors import PreconditionFailed
from qo.store.port import UNCHANGED, ObjectStore, Stored
from qo.testing.conformance.effort import ConformanceTests

NO_ETAG = '"00000000000000000000000000000000"'
EVERY_BYTE = bytes(range(256))


class Writes(ConformanceTests):
    @pytest.mark.parametrize("body", [b"", b"{}", EVERY_BYTE, "ä→😀".encode()], ids=repr)
    async def test_what_was_put_is_got(self, store: ObjectStore, root: str, body: bytes) -> None:
        result = await store.put(f"{root}a", body)
        stored = await store.get(f"{root}a")
        assert stored is not None
        assert stored.body == body
        assert (stored.etag, stored.version) == (result.etag, result.version)

    async def test_a_body_of_five_megabytes_comes_back_whole(self, store: ObjectStore, root: str) -> None:
        body = md5(root.encode(), usedforsecurity=False).digest() * (5 * 2**20 // 16)
        await store.put(f"{root}large", body)
        stored = await store.get(f"{root}large")
        assert stored is not None
        assert stored.body == body

    async def test_a_key_that_was_never_written_reads_as_none(self, store: ObjectStore, root: str) -> None:
        assert await store.get(f"{root}nothing") is None

    async def test_what_is_unchanged_is_not_sent_again(self, store: ObjectStore, root: str) -> None:
        first = await store.put(f"{root}a", b"one")
        assert await store.get_if_changed(f"{root}a", first.etag) is UNCHANGED
        assert await store.get_if_changed(f"{root}a", first.etag) is UNCHANGED
        second = await store.put(f"{root}a", b"two")
        changed = await store.get_if_changed(f"{root}a", first.etag)
        assert changed == Stored(b"two", second.etag, second.version)
        assert await store.get_if_changed(f"{root}a", second.etag) is UNCHANGED

    async def test_what_is_gone_has_changed(self, store: ObjectStore, root: str) -> None:
        result = await store.put(f"{root}a", b"one")
        assert await store.get_if_changed(f"{root}never", result.etag) is None
        await store.delete(f"{root}a")
        assert await store.get_if_changed(f"{root}a", result.etag) is None

    @pytest.mark.parametrize(
        "name",
        ["0/00000000-1111-4222-8333-444455556666.json", "f/0029384756/id", "a_b.c-d", "A", "0", "x/y/z/~"],
    )
    async def test_every_key_we_use_is_a_key(self, store: ObjectStore, root: str, name: str) -> None:
        await store.put(root + name, name.encode())
        stored = await store.get(root + name)
        assert stored is not None
        assert stored.body == name.encode()
        assert [entry.key for entry in (await store.list(root)).entries] == [root + name]

    async def test_the_etag_is_the_quoted_md5_of_the_body(self, store: ObjectStore, root: str) -> None:
        for body in (b"", b"one", EVERY_BYTE):
            result = await store.put(f"{root}a", body)
            assert result.etag == f'"{md5(body, usedforsecurity=False).hexdigest()}"'

    async def test_equal_bodies_have_equal_etags_and_other_versions(self, store: ObjectStore, root: str) -> None:
        first, again, other_key = [await store.put(root + key, b"same") for key in ("a", "a", "b")]
        assert first.etag == again.etag == other_key.etag
        assert first.version != again.version

    async def test_the_last_put_wins(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"one")
        await store.put(f"{root}a", b"two")
        stored = await store.get(f"{root}a")
        assert stored is not None
        assert stored.body == b"two"

    async def test_a_key_is_created_once(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"one", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.put(f"{root}a", b"two", if_absent=True)
        with pytest.raises(PreconditionFailed):
            await store.put(f"{root}a", b"one", if_absent=True)  # Even with the same body.
        stored = await store.get(f"{root}a")
        assert stored is not None
        assert stored.body == b"one"

    async def test_a_deleted_key_can_be_created_again(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}a", b"one", if_absent=True)
        await store.delete(f"{root}a")
        await store.put(f"{root}a", b"two", if_absent=True)
        stored = await store.get(f"{root}a")
        assert stored is not None
        assert stored.body == b"two"

    async def test_a_replace_happens_only_if_the_key_is_unmoved(self, store: ObjectStore, root: str) -> None:
        first = await store.put(f"{root}a", b"one")
        second = await store.put(f"{root}a", b"two", if_match=first.etag)
        with pytest.raises(PreconditionFailed):
            await store.put(f"{root}a", b"three", if_match=first.etag)
        stored = await store.get(f"{root}a")
        assert stored is not None
        assert (stored.body, stored.etag) == (b"two", second.etag)

    async def test_a_missing_key_cannot_be_replaced(self, store: ObjectStore, root: str) -> None:
        with pytest.raises(PreconditionFailed):
            await store.put(f"{root}never", b"one", if_match=NO_ETAG)
        result = await store.put(f"{root}gone", b"one")
        await store.delete(f"{root}gone")
        with pytest.raises(PreconditionFailed):
            await store.put(f"{root}gone", b"two", if_match=result.etag)
        assert await store.get(f"{root}never") is None
        assert await store.get(f"{root}gone") is None

    async def test_the_clock_is_utc_and_about_right(self, store: ObjectStore) -> None:
        now = await store.now()
        assert now.utcoffset() == timedelta(0)
        here = datetime.now(UTC)  # noqa: TID251 - the store's clock is compared with another on purpose.
        assert abs(now - here) < timedelta(minutes=1)

    async def test_the_clock_never_goes_backwards(self, store: ObjectStore, root: str) -> None:
        instants = [await store.now()]
        for count in range(20):
            await store.put(f"{root}a", b"%d" % count)
            instants.append(await store.now())
        assert instants == sorted(instants)
