"""The board in the bucket: read by conditional GET, changed by compare-and-swap.

It is a hint, so nothing here raises because of the store: a notice that cannot be posted is dropped, and the lookout
finds its task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import board as rules
from qo.core import keys, wire
from qo.core.board import AHEAD_S, Board, Notice, decode_board, notice_of
from qo.core.rhythm import POST_EVERY_S
from qo.core.task import Task
from qo.errors import AccessDenied, ConcurrentWrite, CorruptRecord, PreconditionFailed, StoreError
from qo.store.port import UNCHANGED, ObjectStore, PutResult, Stored

log = logging.getLogger(__name__)

POST_EVERY_MAX_S = 4.0  # While other writers come first.
POSTS_MAX = 10_000  # Notices that wait; the lookout finds the tasks of those that are dropped.
TRIES = 2
RECENT_S = 0.5  # A board that was read or written so recently is probably still the same.
AFRESH_S = 10.0  # For how long a board that cannot be read is left alone.

Edit = Callable[[Board], Board | None]


class NoticeBoard:
    """One process's view of the board."""

    def __init__(self, store: ObjectStore, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self.board: Board | None = None  # As it was last read or written; None: missing, or unreadable.
        self.read_at = float("-inf")  # When the request for that was sent, by the monotonic clock.
        self._answered_at = float("-inf")  # When the last request was sent whose answer counts.
        self._etag: str | None = None
        self._unreadable: tuple[str, float] | None = (
            None  # The ETag of a board that cannot be read, and since when.
        )
        self._refused = False  # This process may not read it.
        self._editing = asyncio.Lock()
        self._waiting: list[Notice] = []
        self._posting: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._on_post: list[Callable[[Notice], None]] = []
        self._on_change: list[Callable[[Board], None]] = []

    def subscribe(
        self,
        *,
        on_post: Callable[[Notice], None] | None = None,
        on_change: Callable[[Board], None] | None = None,
    ) -> None:
        """``on_post`` is called with each notice of this process, ``on_change`` whenever another board was read or
        written."""
        self._on_post += [on_post] if on_post is not None else []
        self._on_change += [on_change] if on_change is not None else []

    # Reading

    async def read(self) -> Board | None:
        """Return the board as it is now, with one GET. Raises StoreError if the store does not answer."""
        read_at, etag = self._ambient.monotonic(), self._etag
        try:
            if etag is None:
                stored = await self._store.get(keys.BOARD)
            else:
                stored = await self._store.get_if_changed(keys.BOARD, etag)
        except AccessDenied as error:
            if not self._refused:
                log.warning("%s Without it, workers list the index instead: see `qo policy`.", error)
            self._refused, stored = True, None
        if read_at < self._answered_at or (stored is UNCHANGED and etag != self._etag):
            return self.board  # A later request was answered before.
        self.read_at = self._answered_at = read_at
        if stored is not UNCHANGED:
            self._keep(stored)
        return self.board

    def age_s(self) -> float:
        return self._ambient.monotonic() - self.read_at

    def _keep(self, stored: Stored | None) -> None:
        self.board, self._etag = None, None
        if stored is None:
            return
        self._etag = stored.etag
        try:
            self.board = decode_board(stored.body)
            self._unreadable = None
            self._report_change(self.board)
        except CorruptRecord as error:
            if self._unreadable is None or self._unreadable[0] != stored.etag:
                log.warning("%s It is replaced in %g s; meanwhile workers list.", error, AFRESH_S)
                self._unreadable = (stored.etag, self._ambient.monotonic())

    def _report_change(self, board: Board) -> None:
        for on_change in self._on_change:
            on_change(board)

    # Writing

    async def edit(self, edit: Edit) -> bool:
        """Change the board. Return whether that was done, or was not needed.

        ``edit`` returns the new board, the same one if there is nothing to do, or None to give up. It is called again
        if another writer came first.
        """
        try:
            async with self._editing:
                return await self._edit(edit)
        except StoreError as error:
            self.read_at = float("-inf")  # The write may have happened.
            log.debug("the board was not changed: %s", error)
            return False

    async def _edit(self, edit: Edit) -> bool:
        for _ in range(TRIES):
            if self.board is None or self.age_s() > RECENT_S:
                await self.read()
            if not self._may_replace():
                return False
            before = self.board or Board()
            after = edit(before)
            if after is None:
                return False
            if after is before:
                return True
            after = replace(after, token=self._ambient.token())
            sent_at = self._ambient.monotonic()
            try:
                result = await self._store.put(
                    keys.BOARD, wire.encode(after), if_match=self._etag, if_absent=self._etag is None
                )
            except (PreconditionFailed, ConcurrentWrite):
                self.read_at = float("-inf")
                continue
            if sent_at >= self._answered_at:
                self.board, self._etag = after, result.etag
                self.read_at = self._answered_at = sent_at
                self._report_change(after)
            return True
        return False

    def _may_replace(self) -> bool:
        """Whether the board is readable, missing, or was unreadable for long enough."""
        if self._etag is None or self.board is not None or self._unreadable is None:
            return True
        return self._ambient.monotonic() - self._unreadable[1] >= AFRESH_S

    # Posting

    def post(self, task: Task, hint: PutResult) -> None:
        """Announce a task whose ready hint was just written, if it is due soon. Returns at once."""
        if task.available_at > task.updated_at + timedelta(seconds=AHEAD_S):
            return  # The lookout announces it in time.
        notice = notice_of(task, etag=hint.etag, version=hint.version)
        for on_post in self._on_post:
            on_post(notice)
        if len(self._waiting) < POSTS_MAX:
            self._waiting.append(notice)
        if self._posting is None:
            self._closing.clear()
            self._posting = asyncio.get_running_loop().create_task(self._post_all())

    async def flush(self) -> None:
        """Post what waits, without delay, and wait for it."""
        self._closing.set()
        while self._posting is not None:
            await asyncio.wait({self._posting})

    async def _post_all(self) -> None:
        every_s = POST_EVERY_S
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                if await self.edit(partial(rules.post, fresh=batch, now=await self._store.now())):
                    every_s = POST_EVERY_S
                else:
                    every_s = min(2 * every_s, POST_EVERY_MAX_S)
                    if every_s < POST_EVERY_MAX_S and not self._closing.is_set():
                        self._waiting = [*batch, *self._waiting][:POSTS_MAX]
                await self._rest(every_s)
        except StoreError as error:  # The time is not known.
            log.debug("%d tasks were not announced: %s", len(self._waiting), error)
            self._waiting.clear()
        finally:
            self._posting = None

    async def _rest(self, for_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._closing.wait()
