"""Open the queue that the settings name, in async code or in plain scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from qo.config.origins import load
from qo.config.settings import Settings
from qo.errors import ConfigError
from qo.queue.pusher import PushConfig
from qo.queue.queue import Queue
from qo.queue.sealer import open_sealer
from qo.store.opening import open_ready

T = TypeVar("T")


class connect:  # noqa: N801 - reads as the verb it is: `await qo.connect()` or `async with qo.connect()`.
    """Open the queue that the settings name.

    ``connect()`` reads the settings as the command line does; ``connect("s3://bucket/prefix")`` names the store;
    ``connect(settings)`` takes ready-made ones. Raises Unproven for a bucket that `qo doctor` has not passed.
    """

    def __init__(self, store: str | Settings | None = None, **flags: Any) -> None:
        if isinstance(store, Settings):
            self._settings = store
        else:
            store_flag: Mapping[str, Any] = {} if store is None else {"store": store}
            self._settings = load({**flags, **store_flag})
        self._queue: Queue | None = None

    def __await__(self) -> Generator[Any, None, Queue]:
        return _open(self._settings).__await__()

    async def __aenter__(self) -> Queue:
        self._queue = await _open(self._settings)
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queue is not None:
            await self._queue.close()


async def _open(settings: Settings) -> Queue:
    sealer = open_sealer(settings.encryption)
    store, meter, manifest = await open_ready(settings)
    return Queue(
        store,
        prefix_len=manifest.shard_prefix_len,
        payload_threshold_bytes=settings.payload_threshold_bytes,
        meter=meter,
        sealer=sealer,
        push=_push_config(settings),
        dispatch=settings.queue.config,
    )


def _push_config(settings: Settings) -> PushConfig | None:
    push = settings.push
    if not push.enabled:
        return None
    if not push.tokens:
        raise ConfigError(
            f"push.enabled ({settings.origin('push.enabled')}) needs push.token, the secret that signs wake-ups: set "
            "QO_PUSH_TOKEN for producers and workers, for example to the output of openssl rand -hex 32"
        )
    return PushConfig(push.tokens[-1], push.allowed)


class Run(Protocol):
    def __call__(self, call: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def blocking(store: str | Settings | None = None, **flags: Any) -> Generator[tuple[Queue, Run]]:
    """Open the queue for code without an event loop: ``run`` waits for any of its calls.

        with qo.blocking() as (queue, run):
            task = run(queue.submit("send_email", {"to": "ada@example.com"}))

    So there is no second API to learn; ``run`` returns what the call returns.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="qo-blocking", daemon=True)
    thread.start()

    def run(call: Coroutine[Any, Any, T], /) -> T:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    async def open_queue() -> Queue:
        return await connect(store, **flags)

    try:
        queue = run(open_queue())
        try:
            yield queue, run
        finally:
            run(queue.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
