"""``queue.json``: the settings that all users of a bucket share, and the proof that the bucket can be trusted.

Two processes with different shard prefix lengths would each see half of the tasks, and without compare-and-swap a task
could run twice. So every process calls ``require``, which checks this object, before it uses a bucket.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from qo.ambient import SYSTEM, Ambient
from qo.core import keys, wire
from qo.core.shard import validate_prefix_len
from qo.core.struct_preload import preload
from qo.core.task import FORMAT
from qo.errors import Contended, Unproven
from qo.store import register
from qo.store.port import ObjectStore, PutResult, Stored

PREFIX_LEN_DEFAULT = 1
WRITES_MAX = 10


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The record that this store has passed `qo doctor`."""

    proven_at: datetime  # By the store's clock.
    server: str  # What was tested: the endpoint, in words for a person.
    checks: tuple[str, ...]  # The names of those passed.
    conditional_delete: bool
    versioned: bool


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    shard_prefix_len: int
    created_at: datetime
    proof: Proof | None = None


class Loaded(NamedTuple):
    manifest: Manifest
    etag: str


class _Format(msgspec.Struct):
    format: int


preload(Manifest, _Format)


async def load(store: ObjectStore) -> Loaded | None:
    """Return the bucket's manifest, or None if it has none.

    Raises Unproven if a newer qo wrote it, CorruptRecord if it cannot be read.
    """
    stored = await store.get(keys.QUEUE)
    return None if stored is None else _decode(stored)


async def create_or_get(store: ObjectStore, *, prefix_len: int | None = None, ambient: Ambient = SYSTEM) -> Loaded:
    """Return the manifest, created without a proof if there is none. Racing creators all get the same one."""
    new_prefix_len = validate_prefix_len(PREFIX_LEN_DEFAULT if prefix_len is None else prefix_len)
    for _ in range(WRITES_MAX):
        if (there := await load(store)) is not None:
            return there
        fresh = Manifest(shard_prefix_len=new_prefix_len, created_at=await store.now())
        if (result := await _write(store, fresh, None, ambient)) is not None:
            return Loaded(fresh, result.etag)
    raise Contended(f"{keys.QUEUE} is created and deleted by others all the time; try again")


async def record_proof(
    store: ObjectStore, proof: Proof | None, *, prefix_len: int | None = None, ambient: Ambient = SYSTEM
) -> Manifest:
    """Put a proof into the manifest, creating it if need be; None withdraws the one that is there.

    ``prefix_len`` counts for a new manifest only; an existing one keeps its own.
    """
    for _ in range(WRITES_MAX):
        there = await create_or_get(store, prefix_len=prefix_len, ambient=ambient)
        proven = replace(there.manifest, proof=proof)
        if await _write(store, proven, there.etag, ambient) is not None:
            return proven
    raise Contended(f"{keys.QUEUE} is being changed by others all the time; try again")


async def require(
    store: ObjectStore,
    *,
    prefix_len: int | None,
    needs_proof: bool,
    allow_no_versioning: bool = False,
    ambient: Ambient = SYSTEM,
) -> Manifest:
    """Return the manifest if the bucket may be used with these settings. Raises Unproven, which says what to do.

    ``prefix_len`` None accepts whatever the bucket has. A store that ``needs_proof`` is refused until `qo doctor` has
    tested it; any other gets its manifest here.
    """
    if needs_proof:
        there = await load(store)
        if there is None:
            raise Unproven("this bucket has no queue.json: run `qo doctor` once to test it and set it up")
        manifest = there.manifest
    else:
        manifest = (await create_or_get(store, prefix_len=prefix_len, ambient=ambient)).manifest
    if prefix_len is not None and prefix_len != manifest.shard_prefix_len:
        has = manifest.shard_prefix_len
        raise Unproven(
            f"this bucket has shard prefix length {has}, the settings say {prefix_len}: "
            f"set QO_SHARD_PREFIX_LEN={has}, or use another bucket or prefix"
        )
    if needs_proof:
        _check_proof(manifest.proof, allow_no_versioning)
    return manifest


def _check_proof(proof: Proof | None, allow_no_versioning: bool) -> None:
    if proof is None:
        raise Unproven("this bucket has not passed its checks: run `qo doctor`")
    if not proof.versioned and not allow_no_versioning:
        raise Unproven(
            "this bucket keeps no versions, so tasks would have no history: enable versioning (`aws s3api "
            "put-bucket-versioning --bucket BUCKET --versioning-configuration Status=Enabled`) and run "
            "`qo doctor` again, or set QO_ALLOW_NO_VERSIONING=1 to do without history"
        )


def _decode(stored: Stored) -> Loaded:
    try:
        format_ = msgspec.json.decode(stored.body, type=_Format).format
    except msgspec.MsgspecError:
        format_ = FORMAT  # Unreadable; decoding it in full says why.
    if format_ > FORMAT:
        raise Unproven(f"this bucket has format {format_}, this qo knows up to {FORMAT}: upgrade qo")
    return Loaded(wire.decode(Manifest, stored.body, keys.QUEUE), stored.etag)


async def _write(store: ObjectStore, manifest: Manifest, etag: str | None, ambient: Ambient) -> PutResult | None:
    """Return None if somebody else wrote first. An equal manifest counts as ours."""
    body = wire.encode(manifest)
    wrote = await register.write(
        store, keys.QUEUE, body, if_match=etag, ours=lambda there: there == body, ambient=ambient
    )
    return wrote if isinstance(wrote, PutResult) else None
