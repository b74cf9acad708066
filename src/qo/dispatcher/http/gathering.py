"""Calls that arrive while others are being answered wait for each other, and share a transaction.

    call, call, call  ->  one transaction  ->  answer, answer, answer

Nobody waits for company: a call that finds nothing under way is answered at once. Under load, a transaction answers
as many calls as came while the one before it ran, so statements, round trips and waits for the disk are shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from qo.errors import Unavailable

C = TypeVar("C")
A = TypeVar("A")

TOGETHER_MAX = 64  # Calls of one transaction.
LANES = 2  # Transactions under way: while one waits for the disk, the next is prepared.


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[C, A]):
    call: C
    answer: asyncio.Future[A]


class Gatherer(Generic[C, A]):
    """Answers calls of one kind. Use it from one event loop."""

    def __init__(
        self,
        answer_together: Callable[[Sequence[C]], Sequence[A]],
        executor: Executor,
        key: Callable[[C], Hashable],
        *,
        most: int = TOGETHER_MAX,
        lanes: int = LANES,
    ) -> None:
        """``answer_together`` blocks, and answers all or none. Calls with the same ``key`` are never together."""
        self._answer_together = answer_together
        self._executor = executor
        self._key = key
        self._most = most
        self._lanes = lanes
        self._waiting: list[_Waiting[C, A]] = []
        self._under_way = set[asyncio.Task[None]]()

    async def answer(self, call: C) -> A:
        """Return the answer to a call, or raise what ``answer_together`` raises for it alone."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(call, answer))
        if len(self._under_way) < self._lanes:
            self._under_way.add(asyncio.create_task(self._answer_all()))
        return await answer

    async def _answer_all(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        try:
            await self._answer_waiting()
        finally:
            # At once, and not in a callback: a call that came before that would wait for nobody.
            self._under_way.discard(lane)

    async def _answer_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = self._take()
            calls = [each.call for each in group]
            try:
                answers = await loop.run_in_executor(self._executor, self._attempt, calls)
            except (RuntimeError, asyncio.CancelledError):
                answers = [Unavailable("the dispatcher stops: call again")] * len(calls)
            for each, answer in zip(group, answers, strict=True):
                if each.answer.done():
                    continue  # Its caller is gone.
                if isinstance(answer, BaseException):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)

    def _take(self) -> list[_Waiting[C, A]]:
        """Take the calls that have waited longest, one of each key."""
        group: dict[Hashable, _Waiting[C, A]] = {}
        later: list[_Waiting[C, A]] = []
        for each in self._waiting:
            key = self._key(each.call)
            if len(group) < self._most and key not in group:
                group[key] = each
            else:
                later.append(each)
        self._waiting = later
        return list(group.values())

    def _attempt(self, calls: Sequence[C]) -> Sequence[A | Exception]:
        return answer_all(self._answer_together, calls, self._key)


def answer_all(
    answer_together: Callable[[Sequence[C]], Sequence[A]], calls: Sequence[C], key: Callable[[C], Hashable]
) -> Sequence[A | Exception]:
    """Answer calls together or, if that fails because of one of them, one by one. Blocking.

    Calls with the same key are answered one by one, too.
    """
    if not calls:
        return []
    try:
        if len({key(each) for each in calls}) == len(calls):
            return answer_together(calls)
    except Unavailable as error:
        return [error] * len(calls)  # That has nothing to do with any of them.
    except Exception as error:
        if len(calls) == 1:
            return [error]
    return [answer for each in calls for answer in answer_all(answer_together, [each], key)]
