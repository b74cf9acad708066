"""queue.json: who may use a bucket, and what the refused are told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import keys
from qo.errors import Contended, CorruptRecord, Unproven, UsageError
from qo.store import queue_manifest, register
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import PutResult
from qo.store.queue_manifest import Manifest, Proof

pytestmark = pytest.mark.fast

PROOF = Proof(
    proven_at=datetime(2026, 1, 2, tzinfo=UTC),
    server="http://127.0.0.1:8333",
    checks=("create race", "versions"),
    conditional_delete=True,
    versioned=True,
)


async def test_an_empty_bucket_has_no_manifest() -> None:
    assert await queue_manifest.load(MemoryStore()) is None


async def test_what_was_recorded_is_loaded_again() -> None:
    store = MemoryStore()
    recorded = await queue_manifest.record_proof(store, PROOF, prefix_len=2)
    loaded = await queue_manifest.load(store)
    assert loaded is not None
    assert loaded.manifest == recorded
    assert loaded.manifest.proof == PROOF
    assert loaded.manifest.shard_prefix_len == 2


async def test_of_racing_creators_one_wins_and_all_agree() -> None:
    store = Faulty(MemoryStore(), FaultPlan(latency_s=(0.0, 0.01)), Ambient.seeded(1))
    made = await asyncio.gather(*(queue_manifest.create_or_get(store, prefix_len=1 + n % 4) for n in range(12)))
    assert len({each.etag for each in made}) == 1
    assert len(await store.versions(keys.QUEUE)) == 1


async def test_racing_doctors_both_finish_and_keep_the_shard_count() -> None:
    store = Faulty(MemoryStore(), FaultPlan(latency_s=(0.0, 0.01)), Ambient.seeded(1))
    await queue_manifest.create_or_get(store, prefix_len=3)
    proofs = [replace(PROOF, server=f"server {n}") for n in range(4)]
    await asyncio.gather(*(queue_manifest.record_proof(store, proof, prefix_len=1) for proof in proofs))
    loaded = await queue_manifest.load(store)
    assert loaded is not None
    assert loaded.manifest.shard_prefix_len == 3
    assert loaded.manifest.proof in proofs


async def test_a_lost_reply_does_not_make_a_doctor_think_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "REST_FIRST_S", 0.0)
    store = Faulty(MemoryStore(), FaultPlan(own_412=1), Ambient.seeded(1))
    await queue_manifest.record_proof(store, PROOF)
    assert len(await store.versions(keys.QUEUE)) == 2


async def test_a_proof_can_be_withdrawn() -> None:
    store = MemoryStore()
    await queue_manifest.record_proof(store, PROOF)
    await queue_manifest.record_proof(store, None)
    with pytest.raises(Unproven, match="qo doctor"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)


async def test_writers_that_never_stop_end_in_contended() -> None:
    class Hot(MemoryStore):
        """Somebody else writes before each of our writes."""

        async def put(
            self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
        ) -> PutResult:
            if if_match is not None:
                self.turn = getattr(self, "turn", 0) + 1
                theirs = Manifest(shard_prefix_len=1, created_at=datetime.fromtimestamp(self.turn, UTC))
                await super().put(key, msgspec.json.encode(theirs))
            return await super().put(key, body, if_match=if_match, if_absent=if_absent)

    with pytest.raises(Contended):
        await queue_manifest.record_proof(Hot(), PROOF)


async def test_a_store_that_needs_no_proof_gets_its_manifest_on_first_use() -> None:
    store = MemoryStore()
    first = await queue_manifest.require(store, prefix_len=2, needs_proof=False)
    assert first.shard_prefix_len == 2
    assert await queue_manifest.require(store, prefix_len=None, needs_proof=False) == first


async def test_without_a_wish_a_new_queue_has_sixteen_shards() -> None:
    assert (await queue_manifest.require(MemoryStore(), prefix_len=None, needs_proof=False)).shard_prefix_len == 1


async def test_a_bucket_without_a_manifest_is_refused_until_the_doctor_has_seen_it() -> None:
    store = MemoryStore()
    with pytest.raises(Unproven, match="run `qo doctor`"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)
    assert await queue_manifest.load(store) is None
    await queue_manifest.record_proof(store, PROOF)
    assert (await queue_manifest.require(store, prefix_len=1, needs_proof=True)).proof == PROOF


async def test_a_manifest_without_a_proof_is_not_enough() -> None:
    store = MemoryStore()
    await queue_manifest.create_or_get(store)
    with pytest.raises(Unproven, match="run `qo doctor`"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)


@pytest.mark.parametrize("needs_proof", [True, False])
async def test_another_shard_count_is_refused_with_the_setting_that_fits(needs_proof: bool) -> None:
    store = MemoryStore()
    await queue_manifest.record_proof(store, PROOF, prefix_len=2)
    with pytest.raises(Unproven, match=r"has shard prefix length 2, .* say 1: set QO_SHARD_PREFIX_LEN=2"):
        await queue_manifest.require(store, prefix_len=1, needs_proof=needs_proof)


async def test_a_bucket_of_a_newer_qo_asks_for_an_upgrade_even_if_it_cannot_be_read() -> None:
    store = MemoryStore()
    await store.put(keys.QUEUE, b'{"format": 99, "shards": "another idea"}')
    with pytest.raises(Unproven, match=r"format 99.* upgrade qo"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)


@pytest.mark.parametrize("body", [b"", b"not json", b'{"format": 1}', b"\xff\xfe"])
async def test_a_broken_manifest_is_reported_and_left_alone(body: bytes) -> None:
    store = MemoryStore()
    await store.put(keys.QUEUE, body)
    with pytest.raises(CorruptRecord, match=r"queue\.json"):
        await queue_manifest.record_proof(store, PROOF)
    assert len(await store.versions(keys.QUEUE)) == 1


async def test_no_versioning_must_be_accepted_explicitly() -> None:
    store = MemoryStore()
    await queue_manifest.record_proof(store, replace(PROOF, versioned=False))
    with pytest.raises(Unproven, match=r"put-bucket-versioning.*QO_ALLOW_NO_VERSIONING=1"):
        await queue_manifest.require(store, prefix_len=None, needs_proof=True)
    await queue_manifest.require(store, prefix_len=None, needs_proof=True, allow_no_versioning=True)


async def test_an_impossible_shard_count_never_reaches_the_bucket() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError):
        await queue_manifest.create_or_get(store, prefix_len=5)
    assert await queue_manifest.load(store) is None
