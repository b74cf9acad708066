"""Queues below a store: each has a prefix of its own, named by a runtime of pipelines or by a user.

s3://bucket/prefix  ->  s3://bucket/prefix/queues/spark
local:.qo           ->  local:.qo/queues/spark
"""

from __future__ import annotations

from dataclasses import replace

from qo.config.settings import Settings
from qo.errors import ConfigError
from qo.store import queue_manifest
from qo.store.opening import needs_proof, open_store


def queue_settings(settings: Settings, name: str) -> Settings:
    """Return the settings of one queue. Raises ConfigError for a store that cannot hold queues."""
    store = settings.location.child("queues", name)
    if store is None:
        raise ConfigError(
            f"{settings.store} cannot hold further queues, which several processes share: "
            "set QO_STORE to local:PATH or s3://BUCKET/PREFIX"
        )
    return replace(settings, store=store)


async def prepare(settings: Settings, name: str) -> Settings:
    """Return the settings of a queue below the store, ready to use by ``connect`` and workers.

    Raises Unproven for a bucket that `qo doctor` has not passed.
    """
    own = queue_settings(settings, name)
    if needs_proof(settings):
        await _inherit(settings, own)
    return own


async def _inherit(above: Settings, own: Settings) -> None:
    """Copy the proof of the bucket to a new queue: it holds for the whole bucket."""
    store, _ = await open_store(own)
    try:
        there = await queue_manifest.load(store)
        if there is not None and there.manifest.proof is not None:
            return
        parent, _ = await open_store(above)
        try:
            proven = await queue_manifest.require(
                parent,
                prefix_len=above.shard_prefix_len,
                needs_proof=True,
                allow_no_versioning=above.allow_no_versioning,
            )
        finally:
            await parent.close()
        await queue_manifest.record_proof(store, proven.proof, prefix_len=proven.shard_prefix_len)
    finally:
        await store.close()
