"""Workers whose books are checked after every step, stores that fail as they are told, and tests in virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.port import LIST_LIMIT_MAX, Page, PutResult, Stored
from qo.testing import virtual
from qo.worker.loop.state import State
from qo.worker.worker import Worker

GIVE_UP_S = 20_000.0  # Of virtual time.


class Books:
    """Whether every claim of a worker is held or has had its one outcome, at every moment.

    What is wrong is kept for the end: an error raised in the middle of a worker's step would be the worker's.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.wrong: list[str] = []
        self.steps = 0

    def watch(self, worker: Worker) -> None:
        self.workers.append(worker)
        worker.stats.on_change = lambda: self._changed(worker)

    def _changed(self, worker: Worker) -> None:
        self.steps += 1
        self._check(worker, "in the step", about_to_be_held=1)
        # A claim is counted a moment before it is put where everything held is kept.
        asyncio.get_running_loop().call_soon(self._check, worker, "after the step")

    def _check(self, worker: Worker, when: str, about_to_be_held: int = 0) -> None:
        stats, held = worker.stats, len(worker._holds)
        if not stats.is_balanced:
            self.wrong.append(f"step {self.steps}: a claim has no outcome, or two, {when}: {stats}")
        if not held <= stats.held <= held + about_to_be_held:
            self.wrong.append(f"step {self.steps}: {stats.held} are counted as held, {held} are, {when}")

    def close(self) -> None:
        assert self.wrong == []
        for worker in self.workers:
            if worker.state is State.STOPPED:
                assert (worker.stats.held, len(worker._holds)) == (0, 0), "who has stopped holds nothing"


@pytest.fixture(autouse=True)
def books(monkeypatch: pytest.MonkeyPatch) -> Iterator[Books]:
    """Watches every worker that a test makes."""
    books, make = Books(), Worker.__init__

    def make_watched(self: Worker, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        books.watch(self)

    monkeypatch.setattr(Worker, "__init__", make_watched)
    yield books
    books.close()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        virtual.run(asyncio.wait_for(test(*arguments, **options), GIVE_UP_S))

    return run


Mood = Callable[[str, str, bytes], None]


def _content(what: str, key: str, body: bytes) -> None:
    return


class Moody(MemoryStore):
    """In virtual time. Raises what it is told to, ``before`` it does what was asked or ``after``.

    Both are called with the verb, the key and the body, and raise or do not.
    """

    before: Mood = staticmethod(_content)
    after: Mood = staticmethod(_content)

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        self.before("get", key, b"")
        return await super().get(key, version=version)

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        self.before("put", key, body)
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        self.after("put", key, body)
        return written

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        self.before("list", prefix, b"")
        return await super().list(prefix, start_after=start_after, limit=limit)


def moody_queue() -> tuple[Moody, Queue]:
    store = Moody()
    return store, Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
