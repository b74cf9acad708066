"""What a bucket must offer: versions, conditions that are obeyed, and a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from qo.core import wire
from qo.core.task import Status
from qo.errors import Unproven
from qo.queue.monitor import Monitor
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store import queue_manifest
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore, PutResult
from qo.store.proof import prove
from qo.store.queue_manifest import Proof
from qo.worker.api.app import App
from support.stores.queues import (
    AT_ONCE,
    claimed,
    drain,
    hasty,
)


def counting() -> tuple[App, list[Any]]:
    """An app for type ``t``, and the inputs it has been given."""
    app, seen = App(), list[Any]()

    @app.task("t")
    async def handle(input: Any) -> None:
        seen.append(input)

    return app, seen


async def test_history_longer_than_one_page_is_read_to_its_end(queue: Queue) -> None:
    task = await queue.submit("t")
    key = queue.tasks.key(task.id)
    for n in range(1_001):  # One page of versions is a thousand.
        await queue.store.put(key, wire.encode(replace(task, progress=n)))
    assert [state.progress for state in await queue.history(task.id)] == [None, *range(1_001)]


@pytest.mark.parametrize("year", [1999, 2077])
@pytest.mark.fast
async def test_only_the_stores_clock_counts(year: int) -> None:
    now = datetime(year, 6, 1, tzinfo=UTC)
    queue = Queue(MemoryStore(clock=lambda: now), ambient=hasty())
    app, seen = counting()
    later = await queue.submit("t", "later", Options(delay_s=60))
    expiring = await queue.submit("u", options=Options(expires_in_s=60))
    held = await queue.submit("u", options=Options(retry_policy=AT_ONCE))
    claim = await claimed(queue, held.id, lease_s=60)
    assert claim.task.lease_expires_at == now + timedelta(seconds=60)
    await drain(queue, app)
    assert (await Monitor(queue).check()).requeued == 0
    assert seen == []
    now += timedelta(seconds=60)
    await drain(queue, app)
    assert seen == ["later"]
    assert (await queue.get(later.id)).completed_at == now
    assert (await Monitor(queue).check()).requeued == 1
    await Sweeper(queue).sweep()
    assert (await queue.get(expiring.id)).status is Status.EXPIRED


@pytest.mark.fast
async def test_a_bucket_without_versions_is_refused_unless_allowed(memory_store: MemoryStore) -> None:
    now = await memory_store.now()
    proof = Proof(proven_at=now, server="s", checks=(), conditional_delete=True, versioned=False)
    await queue_manifest.record_proof(memory_store, proof)
    with pytest.raises(Unproven, match="QO_ALLOW_NO_VERSIONING"):
        await queue_manifest.require(memory_store, prefix_len=None, needs_proof=True)
    await queue_manifest.require(memory_store, prefix_len=None, needs_proof=True, allow_no_versioning=True)


@pytest.mark.fast
def test_no_test_is_left_out_by_default(request: pytest.FixtureRequest) -> None:
    options = request.config.getini("addopts")
    assert not any(option.startswith(("-m", "-k", "--ignore", "--deselect")) for option in options)


class Careless(MemoryStore):
    """As some servers are that call themselves compatible: conditions are not looked at."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        return await super().put(key, body)


@pytest.mark.fast
async def test_a_store_that_ignores_conditions_is_found_out_and_refused() -> None:
    store: ObjectStore = Careless()
    assert not (await prove(store)).ok
    with pytest.raises(Unproven, match="qo doctor"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)
