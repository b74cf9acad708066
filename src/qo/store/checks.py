"""Checks of what qo requires of a store, run on the live store.

"S3-compatible" says nothing about compare-and-swap: some servers ignore the condition, some check it and then write, so
that racing writers all win. So the checks race real writers, and trust what was stored rather than the replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from qo.core import keys
from qo.errors import ConcurrentWrite, PreconditionFailed, StoreError, Unavailable
from qo.store.port import Deletion, ObjectStore

UNSAFE = (
    "Do not use this store: two workers would run the same task. AWS S3 and SeaweedFS 4.40 or newer are known "
    "to be right. If a proxy stands in between, it may be dropping If-Match and If-None-Match: try without it."
)
BLIND = "Do not use this store: workers find tasks by listing, and would overlook some."
MILD = "qo works without it: now and then an index key is removed too early, and the sweeper restores it."
NO_HISTORY = (
    "Enable versioning on the bucket (`aws s3api put-bucket-versioning --bucket BUCKET "
    "--versioning-configuration Status=Enabled`), or set QO_ALLOW_NO_VERSIONING=1 to do without history."
)


class Broken(Exception):
    """Raised by a check; its text says what the store did wrong."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The store and prefix that the checks use, and how many writers race."""

    store: ObjectStore
    prefix: str
    writers: int
    rounds: int
    used: set[str] = field(default_factory=set[str])

    def key(self, name: str) -> str:
        key = f"{self.prefix}{name}"
        self.used.add(key)
        return key

    async def each_round(self, name: str, race: Callable[[str, int], Awaitable[None]]) -> None:
        """Run all rounds at once, each on its own key: some servers make the losers of a race wait long."""
        rounds = [race(self.key(f"{name}-{turn}"), turn) for turn in range(self.rounds)]
        ended = await asyncio.gather(*rounds, return_exceptions=True)
        errors = [error for error in ended if error is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, Broken)), errors[0])

    async def expect(self, key: str, body: bytes | None, when: str) -> None:
        """Raise Broken unless the key holds exactly this body, or nothing for None."""
        stored = await self.store.get(key)
        content = None if stored is None else stored.body
        if content != body:
            raise Broken(f"{when}, the store held {content!r} instead of {body!r}")

    async def expect_refused(self, write: Awaitable[object], what: str) -> None:
        try:
            await write
        except (PreconditionFailed, ConcurrentWrite):
            return
        raise Broken(f"{what} was accepted")


async def roundtrip(bench: Bench) -> str:
    """Also with an empty body, which some servers take for a folder."""
    store, key = bench.store, bench.key("roundtrip")
    etags: list[str] = []
    for body in (b"one", b"", b"two"):
        result = await store.put(key, body)
        await bench.expect(key, body, "after a plain write")
        reads = [await store.get(key), await store.get(key)]
        listed = [entry.etag for entry in (await store.list(key)).entries]
        seen_etags = {result.etag, *listed, *(read.etag for read in reads if read is not None)}
        if len(seen_etags) != 1:
            raise Broken(f"put, get and list gave different ETags for one write: {sorted(seen_etags)}")
        etags.append(result.etag)
    if len(set(etags)) != len(etags):
        raise Broken(f"different bodies had the same ETag: {etags}")
    return "what is written is read back, under one ETag"


async def create_once(bench: Bench) -> str:
    store, key = bench.store, bench.key("create")
    await store.put(key, b"first", if_absent=True)
    await bench.expect_refused(store.put(key, b"second", if_absent=True), "a second create of one key")
    await bench.expect(key, b"first", "after a refused create")
    await store.delete(key)
    await store.put(key, b"third", if_absent=True)
    await bench.expect(key, b"third", "after a create in the place of a deleted key")
    return "a key is created once"


async def replace_exactly(bench: Bench) -> str:
    store, key = bench.store, bench.key("replace")
    old = await store.put(key, b"old")
    new = await store.put(key, b"new", if_match=old.etag)
    await bench.expect(key, b"new", "after a replace with the right ETag")
    await bench.expect_refused(store.put(key, b"late", if_match=old.etag), "a replace with an old ETag")
    await bench.expect(key, b"new", "after a refused replace")
    await store.delete(key)
    await bench.expect_refused(store.put(key, b"ghost", if_match=new.etag), "a replace of a deleted key")
    await bench.expect(key, None, "after a refused replace of a deleted key")
    never = bench.key("never")
    await bench.expect_refused(store.put(never, b"ghost", if_match=new.etag), "a replace of a missing key")
    await bench.expect(never, None, "after a refused replace of a missing key")
    return "a write with a stale ETag is refused, and changes nothing"


async def create_race(bench: Bench) -> str:
    await bench.each_round("create-race", lambda key, _: _race(bench, key, None))
    return f"{bench.writers} racing creators, {bench.rounds} rounds: one winner each"


async def replace_race(bench: Bench) -> str:
    async def race(key: str, _: int) -> None:
        await _race(bench, key, (await bench.store.put(key, b"start")).etag)

    await bench.each_round("replace-race", race)
    return f"{bench.writers} racing writers with one ETag, {bench.rounds} rounds: one winner each"


async def _race(bench: Bench, key: str, etag: str | None) -> None:
    """One round: exactly one writer wins, and its object is what is stored."""
    before = await _warm_up(bench, key)
    bodies = [f"writer {n}".encode() for n in range(bench.writers)]
    write = bench.store.put
    lost = await asyncio.gather(*(_try(write(key, b, if_match=etag, if_absent=etag is None)) for b in bodies))
    winners = [body for body, why in zip(bodies, lost, strict=True) if why is None]
    if len(winners) > 1:
        raise Broken(f"{len(winners)} of {bench.writers} racing writers were told that they won")
    stored = await bench.store.get(key)
    if stored is None or stored.body == before:
        _expect_answers(lost)
        outcome = "one was told that it won" if winners else "all were refused"
        raise Broken(f"{bench.writers} racing writers changed nothing: {outcome}")
    if winners and stored.body != winners[0]:
        raise Broken("the racing writer that was told it won is not the one whose object was stored")
    # No winner was reported and one write is stored: a reply was lost, which is no fault of the store.


async def _warm_up(bench: Bench, key: str) -> bytes | None:
    """Open all connections beforehand: writers that still have to connect hardly collide."""
    stored = await asyncio.gather(*(bench.store.get(key) for _ in range(bench.writers)))
    return None if stored[0] is None else stored[0].body


async def _try(write: Awaitable[object]) -> StoreError | None:
    """Return why a racer lost, or None if it won."""
    try:
        await write
    except (PreconditionFailed, ConcurrentWrite, Unavailable) as error:
        return error
    return None


def _expect_answers(lost: Sequence[StoreError | None]) -> None:
    """Raise Unavailable if a racer got no reply: a race without a winner then proves nothing."""
    for error in lost:
        if isinstance(error, Unavailable):
            raise error


async def conditional_delete(bench: Bench) -> str:
    store, key = bench.store, bench.key("conditional-delete")
    old = await store.put(key, b"old")
    new = await store.put(key, b"new")
    await bench.expect_refused(store.delete(key, if_match=old.etag), "a delete with an old ETag")
    await bench.expect(key, b"new", "after a refused delete")
    await store.delete(key, if_match=new.etag)
    await bench.expect(key, None, "after a delete with the right ETag")
    return "a delete with a stale ETag is refused"


async def delete_race(bench: Bench) -> str:
    # The first to send tends to win, so both kinds take turns.
    await bench.each_round("delete-race", lambda key, turn: _delete_round(bench, key, deleter_first=turn % 2 == 0))
    return f"{bench.writers} racing deleters and writers, {bench.rounds} rounds: one kind wins each"


async def _delete_round(bench: Bench, key: str, *, deleter_first: bool) -> None:
    """Race deleters and writers with one ETag: either exactly one writer wins, or only deleters do."""
    store = bench.store
    etag = (await store.put(key, b"start")).etag
    await _warm_up(bench, key)
    bodies = [f"writer {n}".encode() for n in range(max(1, bench.writers // 2))]
    racers: list[Awaitable[StoreError | None]] = []
    for body in bodies:
        racers += [_try(store.put(key, body, if_match=etag)), _try(store.delete(key, if_match=etag))]
    lost = await asyncio.gather(*(reversed(racers) if deleter_first else racers))
    if deleter_first:
        lost.reverse()
    writers = [body for body, why in zip(bodies, lost[::2], strict=True) if why is None]
    deleters = lost[1::2].count(None)
    if not writers and not deleters:
        _expect_answers(lost)
        raise Broken(f"{len(lost)} racing deleters and writers were all refused")
    if len(writers) > 1 or (writers and deleters):
        raise Broken(f"{len(writers)} writers and {deleters} deleters with one ETag were told that they won")
    await bench.expect(key, writers[0] if writers else None, "after deleters and writers raced")


async def list_consistent(bench: Bench) -> str:
    store, folder = bench.store, f"{bench.prefix}listed/"
    names = [bench.key(f"listed/{n}") for n in range(8)]
    for count, name in enumerate(names, start=1):
        await store.put(name, b"")
        await _expect_listed(store, folder, names[:count], "right after a write")
    await store.delete(names[0])
    await _expect_listed(store, folder, names[1:], "right after a delete")
    await store.delete_many([Deletion(name) for name in names[1:-1]])
    await _expect_listed(store, folder, names[-1:], "right after a delete of several keys")
    return "a list shows every write and delete at once"


async def list_pages(bench: Bench) -> str:
    """Keys laid out like the indexes, walked in pages and skipped over like them."""
    store, folder = bench.store, f"{bench.prefix}pages/"
    names = [bench.key(f"pages/{s}/{m:010d}/{i}") for s in "0a" for m in (1, 20) for i in "xyz"]
    await asyncio.gather(*(store.put(name, b"") for name in reversed(names)))
    walked: list[str] = []
    for _ in names:
        page = await store.list(folder, start_after=walked[-1] if walked else "", limit=5)
        walked += [entry.key for entry in page.entries]
        if not page.truncated:
            break
    if walked != names:
        raise Broken(f"{len(names)} keys in pages of 5 came back as {len(walked)}, or in another order")
    page = await store.list(folder, start_after=f"{folder}0/{keys.AFTER_ALL}")
    if [entry.key for entry in page.entries] != names[len(names) // 2 :]:
        raise Broken("a list that starts after a key that does not exist starts in the wrong place")
    return "lists are in key order, complete over pages, and start where told"


async def _expect_listed(store: ObjectStore, folder: str, names: Sequence[str], when: str) -> None:
    listed = [entry.key for entry in (await store.list(folder)).entries]
    if listed != list(names):
        raise Broken(f"{when}, {len(listed)} keys were listed instead of {len(names)}")


async def versions(bench: Bench) -> str:
    store, key = bench.store, bench.key("versions")
    if not await store.versioned():
        raise Broken("versioning is off")
    await store.put(key, b"old")
    await store.put(key, b"new")
    history = await store.versions(key)
    bodies = [await store.get(key, version=version.version) for version in history]
    if [stored.body for stored in bodies if stored is not None] != [b"new", b"old"]:
        raise Broken(f"of two versions, {len(history)} were listed, or they could not be read, newest first")
    await store.delete(key)
    await bench.expect(key, None, "after a delete in a versioned bucket")
    marker = (await store.versions(key))[0]
    if not (marker.deleted and marker.latest):
        raise Broken("a delete left no delete marker as the latest version")
    return "old versions are kept and can be read"


async def clock(bench: Bench) -> str:
    theirs = await bench.store.now()
    ours = datetime.now(UTC)  # noqa: TID251 - Told to a person, decides nothing.
    ahead_s = (theirs - ours).total_seconds()
    return f"the store's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Bench], Awaitable[str]]
    advice: str
    required: bool = True


VERSIONS = "versions"
CONDITIONAL_DELETE = "conditional delete"
DELETE_RACE = "delete race"

CHECKS = (
    Check("read back", roundtrip, "Do not use this store: it does not give back what was written."),
    Check("create once", create_once, UNSAFE),
    Check("replace exactly", replace_exactly, UNSAFE),
    Check("create race", create_race, UNSAFE),
    Check("replace race", replace_race, UNSAFE),
    Check(CONDITIONAL_DELETE, conditional_delete, MILD, required=False),
    Check(DELETE_RACE, delete_race, MILD, required=False),
    Check("list after write", list_consistent, BLIND),
    Check("list in pages", list_pages, BLIND),
    Check(VERSIONS, versions, NO_HISTORY),
    Check("clock", clock, "", required=False),
)
