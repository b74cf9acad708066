"""What hints leave behind in a versioned bucket goes soon, and hints stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core import keys
from qo.errors import AccessDenied
from qo.queue import hint_markers
from qo.queue.feed import Feed
from qo.queue.hint_markers import HintMarkers
from qo.queue.options import NewTask
from qo.queue.queue import Claim, Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import Deletion, ObjectStore, VersionEntry
from support.stores.queues import another, hints, wanted_hints


async def left_behind(store: ObjectStore) -> list[VersionEntry]:
    """Delete markers, and versions that are no longer current."""
    pages = [await store.list_versions(prefix) for prefix in hint_markers.PREFIXES]
    return [each for page in pages for each in page.entries if each.version.deleted or not each.version.latest]


async def test_markers_of_listed_hints_are_removed_and_hints_stay(
    queue: Queue, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint_markers, "LEFT_FOR", timedelta(seconds=-5))  # Those of a moment ago, too.
    tasks = await queue.submit_many([NewTask("t", n) for n in range(8)])
    feed = Feed(another(queue))
    for due in (await feed.take(8))[:5]:
        claim = await queue.claim(due.task_id, worker_id="w", hint=Deletion(due.key, due.version, due.etag))
        assert isinstance(claim, Claim)
        await queue.complete(claim)
    remaining = [task for task in tasks if (await queue.get(task.id)).ended is False]
    assert await hints(queue) == wanted_hints(*remaining)
    is_local = request.node.callspec.params["any_store"] == "local"
    assert bool(await left_behind(queue.store)) is not is_local, "the embedded store keeps no history of hints"
    await HintMarkers(queue).remove()
    assert await left_behind(queue.store) == []
    assert await hints(queue) == wanted_hints(*remaining)


@pytest.mark.fast
async def test_many_markers_take_two_requests_a_thousand(memory_store: MemoryStore) -> None:
    for n in range(1_200):
        key = keys.index(keys.READY, "a", 29_000_000 + n, "a0000000-0000-4000-8000-000000000000")
        await memory_store.put(key, b"t")
        await memory_store.delete(key)
    meter = Metered(memory_store)
    markers = HintMarkers(Queue(meter))
    assert await markers.remove() == 0, "the writer of a young one may still be at work"
    meter.reset()
    hint_markers_left, hint_markers.LEFT_FOR = hint_markers.LEFT_FOR, timedelta(seconds=-5)
    try:
        assert await markers.remove() == 2_400
    finally:
        hint_markers.LEFT_FOR = hint_markers_left
    assert sum(meter.counts.values()) <= 4 * 2 + 2


class Refusing(MemoryStore):
    asked = 0

    async def list_versions(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        self.asked += 1
        raise AccessDenied("no")


@pytest.mark.fast
async def test_who_may_not_list_versions_leaves_them_to_the_lifecycle_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Refusing()
    monkeypatch.setattr(hint_markers, "MARKERS_EVERY_S", 0.0)
    markers = HintMarkers(Queue(store))
    for _ in range(3):
        assert await markers.remove_if_due() == 0
    assert store.asked == 1
