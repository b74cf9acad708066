"""The doctor's checks: every way in which a store has been seen to be wrong is caught, and named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from qo.ambient import Ambient
from qo.errors import AccessDenied, PreconditionFailed, StoreError, Unavailable
from qo.store import queue_manifest
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import LIST_LIMIT_MAX, Deletion, ObjectStore, Page, PutResult, Version
from qo.store.proof import CheckResult, Report, prove

pytestmark = pytest.mark.fast


def failures(report: Report) -> dict[str, CheckResult]:
    return {result.name: result for result in report.results if not result.passed}


class Forgetful(MemoryStore):
    """Ignores conditions, as servers do that do not know the headers."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        return await super().put(key, body)

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        await super().delete(key)


class ForgetfulOfCreates(MemoryStore):
    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        return await super().put(key, body, if_match=if_match)


class ForgetfulOfReplaces(MemoryStore):
    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        return await super().put(key, body, if_absent=if_absent)


class Hasty(MemoryStore):
    """Right one by one, wrong under a race: others get in between its look and its write."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        stored = await self.get(key)
        if (if_absent and stored) or (if_match and (stored is None or stored.etag != if_match)):
            raise PreconditionFailed(key)
        await asyncio.sleep(0)
        return await super().put(key, body)


class RefusingAfterwards(MemoryStore):
    """Says no, and writes all the same."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        try:
            return await super().put(key, body, if_match=if_match, if_absent=if_absent)
        except PreconditionFailed:
            await super().put(key, body)
            raise


class Resurrecting(MemoryStore):
    """Takes a replace of a missing key for a create."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if if_match is not None and await self.get(key) is None:
            if_match = None
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


class Burying(MemoryStore):
    """Takes a delete marker for an object: what was deleted can never be created again."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if if_absent and await self.versions(key):
            raise PreconditionFailed(key)
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


class Stubborn(MemoryStore):
    """Lets nobody win a race."""

    racing = 0

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        self.racing += 1
        await asyncio.sleep(0)
        alone = self.racing == 1
        await asyncio.sleep(0)
        self.racing -= 1
        if not alone and (if_match or if_absent):
            raise PreconditionFailed(key)
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


@pytest.mark.parametrize(
    ("kind", "caught_by"),
    [
        (Forgetful, {"create once", "replace exactly", "create race", "replace race"}),
        (ForgetfulOfCreates, {"create once", "create race"}),
        (ForgetfulOfReplaces, {"replace exactly", "replace race"}),
        (Hasty, {"create race", "replace race"}),
        (RefusingAfterwards, {"create once", "replace exactly"}),
        (Resurrecting, {"replace exactly"}),
        (Burying, {"create once"}),
        (Stubborn, {"create race", "replace race"}),
    ],
)
async def test_a_store_without_compare_and_swap_is_caught(kind: type[MemoryStore], caught_by: set[str]) -> None:
    report = await prove(kind())
    assert not report.ok
    wrong = failures(report)
    assert caught_by <= wrong.keys()
    for name in caught_by:
        assert wrong[name].required
        assert "Do not use this store" in wrong[name].advice
        assert "proxy" in wrong[name].advice


async def test_the_number_of_false_winners_is_told() -> None:
    wrong = failures(await prove(Hasty(), writers=5))
    assert wrong["replace race"].detail == "5 of 5 racing writers were told that they won"


async def test_a_good_store_passes_everything() -> None:
    report = await prove(MemoryStore())
    assert report.ok
    assert failures(report) == {}


async def test_a_good_store_passes_however_its_answers_are_delayed() -> None:
    for seed in range(3):
        slow = Faulty(MemoryStore(), FaultPlan(latency_s=(0.0, 0.002)), Ambient.seeded(seed))
        assert (await prove(slow, writers=8, rounds=2)).ok


async def test_replies_that_are_lost_in_a_race_are_not_held_against_the_store() -> None:
    class Lossy(MemoryStore):
        """Loses the reply to every winning conditional write of a race."""

        async def put(
            self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
        ) -> PutResult:
            written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
            if b"writer" in body:
                raise Unavailable("connection reset")
            return written

    wrong = failures(await prove(Lossy()))
    assert wrong.keys() == {"delete race"}
    assert "Unavailable" in wrong["delete race"].detail


async def test_a_store_that_goes_away_during_a_race_is_not_condemned() -> None:
    class Overrun(MemoryStore):
        """Answers no conditional write that has company."""

        async def put(
            self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
        ) -> PutResult:
            if b"writer" in body:
                raise Unavailable("503 SlowDown")
            return await super().put(key, body, if_match=if_match, if_absent=if_absent)

    report = await prove(Overrun())
    assert not report.ok
    assert "503" in failures(report)["replace race"].detail
    assert not any("Do not use" in result.advice for result in report.results)


class DeletingAnyway(MemoryStore):
    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        await super().delete(key)


class DeletingHastily(MemoryStore):
    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        stored = await self.get(key)
        if if_match and stored and stored.etag != if_match:
            raise PreconditionFailed(key)
        await asyncio.sleep(0)
        await super().delete(key)


@pytest.mark.parametrize("kind", [DeletingAnyway, DeletingHastily])
async def test_a_store_without_conditional_delete_is_usable_and_marked(kind: type[MemoryStore]) -> None:
    report = await prove(kind())
    assert report.ok
    assert failures(report)
    assert all("qo works without it" in result.advice for result in failures(report).values())
    assert not report.proof(at=datetime.now(UTC), server="test").conditional_delete


class Lagging(MemoryStore):
    """Lists what was there one write ago."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        page = await super().list(prefix, start_after=start_after, limit=limit)
        return Page(page.entries[:-1], page.truncated) if "listed/" in prefix else page


class StartingOver(MemoryStore):
    """Does not know start_after."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        return await super().list(prefix, limit=limit)


class StoppingShort(MemoryStore):
    """Gives one page and says that it is the last."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        page = await super().list(prefix, start_after=start_after, limit=limit)
        return Page(page.entries, truncated=False)


class DeletingOnlyOne(MemoryStore):
    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        await super().delete_many(deletions[:1])


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Lagging, "list after write"),
        (DeletingOnlyOne, "list after write"),
        (StartingOver, "list in pages"),
        (StoppingShort, "list in pages"),
    ],
)
async def test_a_store_whose_lists_cannot_be_trusted_is_caught(kind: type[MemoryStore], check: str) -> None:
    report = await prove(kind())
    assert not report.ok
    assert "overlook" in failures(report)[check].advice


class ForgettingVersions(MemoryStore):
    """Says that versioning is on, and keeps the latest version only."""

    async def versions(self, key: str) -> Sequence[Version]:
        return (await super().versions(key))[:1]


@pytest.mark.parametrize("store", [MemoryStore(versioned=False), ForgettingVersions()])
async def test_a_store_without_history_is_refused_unless_that_is_accepted(store: MemoryStore) -> None:
    report = await prove(store)
    assert not report.ok
    assert failures(report).keys() == {"versions"}
    advice = failures(report)["versions"].advice
    assert "put-bucket-versioning" in advice
    assert "QO_ALLOW_NO_VERSIONING=1" in advice

    accepted = await prove(store, allow_no_versioning=True)
    assert accepted.ok
    assert not accepted.proof(at=datetime.now(UTC), server="test").versioned


class Closed(MemoryStore):
    def __init__(self, error: StoreError) -> None:
        super().__init__()
        self.error = error

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        raise self.error


@pytest.mark.parametrize("error", [AccessDenied("no credentials"), Unavailable("nobody listens")])
async def test_without_access_there_is_one_failure_with_the_reason(error: StoreError) -> None:
    (only,) = (await prove(Closed(error))).results
    assert not only.passed
    assert str(error) in only.detail
    assert "run `qo doctor` again" in only.advice


async def test_a_failure_in_the_middle_does_not_condemn_the_store() -> None:
    class NoVersionRights(MemoryStore):
        async def versions(self, key: str) -> Sequence[Version]:
            raise AccessDenied("s3:ListBucketVersions is missing")

    report = await prove(NoVersionRights())
    assert failures(report).keys() == {"versions"}
    assert "s3:ListBucketVersions" in failures(report)["versions"].detail
    assert "Do not use" not in failures(report)["versions"].advice


@pytest.mark.parametrize("store", [MemoryStore(), MemoryStore(versioned=False), Forgetful(), Hasty()])
async def test_nothing_is_left_behind_and_nothing_else_is_touched(store: MemoryStore) -> None:
    await store.put("tasks/0/mine.json", b"mine")
    written: set[str] = set()

    class Watched(Metered):
        def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False):
            written.add(key)
            return super().put(key, body, if_match=if_match, if_absent=if_absent)

    watched: ObjectStore = Watched(store)
    await prove(watched)
    assert written
    assert all(key.startswith("doctor/") for key in written)
    assert [entry.key for entry in (await store.list("")).entries] == ["tasks/0/mine.json"]
    assert len(await store.versions("tasks/0/mine.json")) == 1
    assert [await store.versions(key) for key in written] == [[] for _ in written]


async def test_a_cancelled_doctor_cleans_up_too() -> None:
    store = MemoryStore()
    reached = asyncio.Event()
    running = asyncio.create_task(
        prove(
            Faulty(store, FaultPlan(latency_s=(0.0, 0.002)), Ambient.seeded(1)), on_check=lambda _: reached.set()
        )
    )
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await store.list("")).entries == []


async def test_each_check_is_reported_as_it_ends() -> None:
    heard: list[CheckResult] = []
    report = await prove(MemoryStore(), on_check=heard.append)
    assert tuple(heard) == report.results
    assert len({result.name for result in heard}) == len(heard)


async def test_the_clock_is_compared_and_decides_nothing() -> None:
    report = await prove(MemoryStore(clock=lambda: datetime(2001, 1, 1, tzinfo=UTC)))
    (clock,) = [result for result in report.results if result.name == "clock"]
    assert clock.passed
    assert "s behind this machine's" in clock.detail


async def test_a_proof_opens_the_bucket_for_workers() -> None:
    store = MemoryStore()
    report = await prove(store)
    await queue_manifest.record_proof(store, report.proof(at=await store.now(), server="memory"))
    opened = await queue_manifest.require(store, prefix_len=None, needs_proof=True)
    assert opened.proof is not None
    assert opened.proof.versioned
    assert opened.proof.conditional_delete
    assert "replace race" in opened.proof.checks
