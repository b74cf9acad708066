"""From settings to an open store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from qo.ambient import SYSTEM, Ambient
from qo.config.location import Local, Memory
from qo.config.settings import Settings
from qo.core.keys import EPHEMERAL
from qo.errors import ConfigError
from qo.store import manifest
from qo.store.manifest import Manifest
from qo.store.metered import Metered
from qo.store.port import ObjectStore


class Opened(NamedTuple):
    store: ObjectStore
    meter: Metered  # Counts every request that ``store`` sends, repetitions included.


async def open_store(settings: Settings, *, ambient: Ambient = SYSTEM) -> Opened:
    """The store that the settings name. An adapter is imported only when it is used."""
    meter = Metered(await _open(settings, ambient))
    if isinstance(settings.location, Local | Memory):
        return Opened(meter, meter)
    from qo.store.retrying import Retrying

    return Opened(Retrying(meter, ambient=ambient), meter)


class Ready(NamedTuple):
    store: ObjectStore
    meter: Metered
    manifest: Manifest


async def open_ready(settings: Settings) -> Ready:
    """The same, if it is fit for a queue. Raises Unproven for a bucket that `qo doctor` has not passed."""
    store, meter = await open_store(settings)
    try:
        found = await manifest.require(
            store,
            prefix_len=settings.shard_prefix_len,
            needs_proof=needs_proof(settings),
            allow_no_versioning=settings.allow_no_versioning,
        )
    except BaseException:
        await store.close()
        raise
    return Ready(store, meter, found)


def needs_proof(settings: Settings) -> bool:
    """Whether `qo doctor` must have tested the store. Our own adapters are held to the same suite in tests."""
    return not isinstance(settings.location, Local | Memory)


_shared: dict[str, ObjectStore] = {}  # The stores of this process that have names.


@contextmanager
def shared(name: str, store: ObjectStore) -> Generator[None]:
    """Have ``memory:NAME`` lead to this store for a while."""
    _shared[name] = store
    try:
        yield
    finally:
        del _shared[name]


def _memory(name: str) -> ObjectStore:
    from qo.store.memory import MemoryStore

    return _shared.setdefault(name, MemoryStore()) if name else MemoryStore()


async def _open(settings: Settings, ambient: Ambient) -> ObjectStore:
    location = settings.location
    if isinstance(location, Local):
        from qo.store.local import LocalStore

        return await LocalStore.open(location.path, forget=EPHEMERAL, durable=settings.local.durable)
    if isinstance(location, Memory):
        return _memory(location.name)
    try:
        from qo.store.s3 import S3Store
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"an S3 store needs {missing.name}: install qo with its extra, from a checkout, pip install '.[s3]'"
        ) from None
    return await S3Store.open(
        location.bucket,
        prefix=location.prefix,
        endpoint=settings.s3.endpoint,
        region=settings.s3.region,
        ambient=ambient,
    )
