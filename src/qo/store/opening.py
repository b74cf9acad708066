"""Open the store that the settings name.

A store adapter needs three files: a module with its ``Location`` and its store, a call of ``register_adapter`` (here,
or in the program that uses it, before it loads settings that name the store), and a test that runs
``qo.testing.conformance``. ``tests/conformance/test_adapter.py`` is an example.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from qo.ambient import SYSTEM, Ambient
from qo.config.location import S3, Local, Location, Memory, register_scheme
from qo.config.settings import Settings
from qo.core.keys import EPHEMERAL
from qo.errors import ConfigError
from qo.store import queue_manifest
from qo.store.metered import Metered
from qo.store.port import ObjectStore
from qo.store.queue_manifest import Manifest

L = TypeVar("L", bound=Location)
Opener = Callable[[L, Settings, Ambient], Awaitable[ObjectStore]]


class OpenedStore(NamedTuple):
    store: ObjectStore
    meter: Metered  # Counts every request that ``store`` sends, repetitions included.


async def open_store(settings: Settings, *, ambient: Ambient = SYSTEM) -> OpenedStore:
    """Open the store that the settings name. An adapter is imported only when it is used."""
    location = settings.location
    meter = Metered(await _OPENERS[type(location)](location, settings, ambient))
    if not location.is_remote:
        return OpenedStore(meter, meter)
    from qo.store.retrying import Retrying

    return OpenedStore(Retrying(meter, ambient=ambient), meter)


class Ready(NamedTuple):
    store: ObjectStore
    meter: Metered
    manifest: Manifest


async def open_ready(settings: Settings) -> Ready:
    """Open the store if it is fit for a queue. Raises Unproven for a bucket that `qo doctor` has not passed."""
    store, meter = await open_store(settings)
    try:
        checked = await queue_manifest.require(
            store,
            prefix_len=settings.shard_prefix_len,
            needs_proof=needs_proof(settings),
            allow_no_versioning=settings.allow_no_versioning,
        )
    except BaseException:
        await store.close()
        raise
    return Ready(store, meter, checked)


def needs_proof(settings: Settings) -> bool:
    """Whether `qo doctor` must have tested the store. The embedded stores pass the same checks in qo's own tests."""
    return settings.location.is_remote


_shared: dict[str, ObjectStore] = {}  # The named memory stores of this process.


@contextmanager
def shared(name: str, store: ObjectStore) -> Generator[None]:
    """Let ``memory:NAME`` open this store within the context."""
    _shared[name] = store
    try:
        yield
    finally:
        del _shared[name]


def register_adapter(scheme: str, kind: type[L], parser: Callable[[str], L], opener: Opener[L]) -> None:
    """Add a kind of store: settings may then name it as ``scheme:...``.

    ``parser`` makes a location of what follows the colon and raises ValueError if it cannot; ``opener`` opens the
    store at such a location.
    """
    register_scheme(scheme, parser)
    _OPENERS[kind] = opener


async def _open_local(location: Local, settings: Settings, ambient: Ambient) -> ObjectStore:
    from qo.store.local import LocalStore

    return await LocalStore.open(location.path, forget=EPHEMERAL, durable=settings.local.durable)


async def _open_memory(location: Memory, settings: Settings, ambient: Ambient) -> ObjectStore:
    from qo.store.memory import MemoryStore

    return _shared.setdefault(location.name, MemoryStore()) if location.name else MemoryStore()


async def _open_s3(location: S3, settings: Settings, ambient: Ambient) -> ObjectStore:
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


_OPENERS: dict[type[Location], Opener[Any]] = {Local: _open_local, Memory: _open_memory, S3: _open_s3}
