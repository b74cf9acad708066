"""Races: many writers on one key at the same time. qo depends on compare-and-swap, so it is tested under contention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from qo.errors import ConcurrentWrite, PreconditionFailed
from qo.store.port import ObjectStore
from qo.testing.conformance.effort import ConformanceTests


async def try_write(write: Callable[[], Awaitable[object]]) -> bool:
    """Return whether this writer won. After a 409, which decides nothing, it writes again."""
    for _ in range(20):
        try:
            await write()
        except PreconditionFailed:
            return False
        except ConcurrentWrite:
            continue
        return True
    raise AssertionError("the store answered 409 twenty times, and decided nothing")


class Races(ConformanceTests):
    async def test_of_many_racing_creators_one_wins(self, store: ObjectStore, root: str) -> None:
        for round_ in range(self.ROUNDS):
            key = f"{root}{round_}"
            wins = await self._race(lambda me, key=key: store.put(key, b"%d" % me, if_absent=True))
            await _check_only_winner(store, key, wins)

    async def test_of_many_racing_replacers_one_wins_each_round(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        etag = (await store.put(key, b"start")).etag
        for round_ in range(self.ROUNDS):
            wins = await self._race(
                lambda me, etag=etag, round_=round_: store.put(key, b"%d %d" % (me, round_), if_match=etag)
            )
            etag = await _check_only_winner(store, key, wins, b" %d" % round_)

    async def test_a_delete_and_a_replace_of_one_etag_never_both_happen(
        self, store: ObjectStore, root: str
    ) -> None:
        for round_ in range(self.ROUNDS):
            key = f"{root}{round_}"
            etag = (await store.put(key, b"start")).etag
            replaced, deleted = await asyncio.gather(
                try_write(lambda key=key, etag=etag: store.put(key, b"next", if_match=etag)),
                try_write(lambda key=key, etag=etag: store.delete(key, if_match=etag)),
            )
            assert replaced != deleted
            assert (await store.get(key) is not None) == replaced

    async def test_racing_increments_lose_none(self, store: ObjectStore, root: str) -> None:
        key = f"{root}count"
        await store.put(key, b"0")

        async def try_increment() -> bool:
            stored = await store.get(key)
            assert stored is not None
            more = b"%d" % (int(stored.body) + 1)
            return await try_write(lambda: store.put(key, more, if_match=stored.etag))

        async def increment() -> None:
            while not await try_increment():
                pass  # Another writer was faster, so there is progress.

        await asyncio.gather(*(increment() for _ in range(self.ROUNDS)))
        stored = await store.get(key)
        assert stored is not None
        assert int(stored.body) == self.ROUNDS

    async def _race(self, write: Callable[[int], Awaitable[object]]) -> list[int]:
        """Return the numbers of the writers that won."""
        wins = await asyncio.gather(*(try_write(lambda me=me: write(me)) for me in range(self.RACERS)))
        return [me for me, winner in enumerate(wins) if winner]


async def _check_only_winner(store: ObjectStore, key: str, wins: list[int], rest: bytes = b"") -> str:
    assert len(wins) == 1, f"{len(wins)} writers won, according to the store"
    stored = await store.get(key)
    assert stored is not None
    assert stored.body == b"%d%s" % (wins[0], rest)
    return stored.etag
