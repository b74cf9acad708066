"""Many writers on one key at one moment. Compare-and-swap is what qo rests on, so it is raced, not believed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from qo.errors import ConcurrentWrite, PreconditionFailed
from qo.store.port import ObjectStore
from qo.testing.conformance.ground import Ground


async def won(write: Callable[[], Awaitable[object]]) -> bool:
    """Whether this writer was the one. A 409 has not decided anything, so it is asked again."""
    for _ in range(20):
        try:
            await write()
        except PreconditionFailed:
            return False
        except ConcurrentWrite:
            continue
        return True
    raise AssertionError("twenty times 409 and no decision")


class Races(Ground):
    async def test_of_many_racing_creators_one_wins(self, store: ObjectStore, root: str) -> None:
        for round_ in range(self.ROUNDS):
            key = f"{root}{round_}"
            wins = await self._race(lambda me, key=key: store.put(key, b"%d" % me, if_absent=True))
            await _holds_the_only_winner(store, key, wins)

    async def test_of_many_racing_replacers_one_wins_each_round(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        etag = (await store.put(key, b"start")).etag
        for round_ in range(self.ROUNDS):
            wins = await self._race(
                lambda me, etag=etag, round_=round_: store.put(key, b"%d %d" % (me, round_), if_match=etag)
            )
            etag = await _holds_the_only_winner(store, key, wins, b" %d" % round_)

    async def test_a_delete_and_a_replace_of_one_etag_never_both_happen(
        self, store: ObjectStore, root: str
    ) -> None:
        for round_ in range(self.ROUNDS):
            key = f"{root}{round_}"
            etag = (await store.put(key, b"start")).etag
            replaced, deleted = await asyncio.gather(
                won(lambda key=key, etag=etag: store.put(key, b"next", if_match=etag)),
                won(lambda key=key, etag=etag: store.delete(key, if_match=etag)),
            )
            assert replaced != deleted
            assert (await store.get(key) is not None) == replaced

    async def test_racing_increments_lose_none(self, store: ObjectStore, root: str) -> None:
        key = f"{root}count"
        await store.put(key, b"0")

        async def incremented() -> bool:
            found = await store.get(key)
            assert found is not None
            more = b"%d" % (int(found.body) + 1)
            return await won(lambda: store.put(key, more, if_match=found.etag))

        async def increment() -> None:
            while not await incremented():
                pass  # Another was faster, so the whole gets on.

        await asyncio.gather(*(increment() for _ in range(self.ROUNDS)))
        found = await store.get(key)
        assert found is not None
        assert int(found.body) == self.ROUNDS

    async def _race(self, write: Callable[[int], Awaitable[object]]) -> list[int]:
        """Who won, of all who tried."""
        wins = await asyncio.gather(*(won(lambda me=me: write(me)) for me in range(self.RACERS)))
        return [me for me, winner in enumerate(wins) if winner]


async def _holds_the_only_winner(store: ObjectStore, key: str, wins: list[int], rest: bytes = b"") -> str:
    assert len(wins) == 1, f"{len(wins)} writers were told that they had won"
    found = await store.get(key)
    assert found is not None
    assert found.body == b"%d%s" % (wins[0], rest)
    return found.etag
