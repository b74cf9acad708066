"""Settling a claim: writing its outcome to the task in the store, repeated until the store has taken it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qo.core.task import Status, Task
from qo.errors import LeaseLost, QoError, StoreError
from qo.queue.queue import Claim, Queue
from qo.worker.api.inputs import dump
from qo.worker.loop.clock import now
from qo.worker.loop.outcome import Acked, Dead, Lost, Outcome, Released, Retried, text_of, traceback_of
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

REST_FIRST_S = 0.2
REST_MAX_S = 5.0


class Settler:
    def __init__(
        self,
        queue: Queue,
        stats: Stats,
        *,
        patience_s: float,
        tell_failure: Callable[[Task, str], None] = lambda task, error: None,
    ) -> None:
        """``patience_s`` is how long a report is repeated while the store fails. ``tell_failure`` is called for each
        task that has failed for good."""
        self._queue = queue
        self._stats = stats
        self._patience_s = patience_s
        self._tell_failure = tell_failure

    async def settle(self, claim: Claim, outcome: Outcome, *, progress: Any = None) -> Outcome:
        """Write the outcome of a claim, with its latest progress if it is done.

        Returns the outcome that counts in the end. Raises nothing but CancelledError.
        """
        try:
            return await self._write_until_taken(claim, outcome, progress)
        except LeaseLost as error:
            log.warning("task %s: its lease was lost before this could be reported: %s", claim.task.id, error)
            return Lost(str(error))
        except StoreError as error:
            log.warning("task %s: %s; its lease will run out and it will be tried again", claim.task.id, error)
            return Lost(str(error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # Code of the output runs here.
            # The outcome cannot be written: JSON cannot hold the output, for example.
            if not isinstance(outcome, Acked | Retried | Released):
                log.exception("task %s could not be settled", claim.task.id)
                return Lost(text_of(error))
            failure = (
                Dead(str(error))
                if isinstance(outcome, Acked) and isinstance(error, QoError)
                else Dead(text_of(error), traceback_of(error))
            )
            return await self.settle(claim, failure)

    async def _write_until_taken(self, claim: Claim, outcome: Outcome, progress: Any) -> Outcome:
        """Report until the lease must have run out. The fence makes a repetition harmless."""
        rest_s, until = REST_FIRST_S, now() + self._patience_s
        write = self._writer(claim, outcome, progress)
        while write is not None:
            try:
                return self._final_outcome(claim, outcome, await write())
            except LeaseLost:
                raise
            except StoreError:
                if now() + rest_s > until:
                    raise
            self._stats.settle_retries += 1
            await asyncio.sleep(rest_s)
            rest_s = min(rest_s * 2, REST_MAX_S)
        return outcome

    def _writer(self, claim: Claim, outcome: Outcome, progress: Any) -> Callable[[], Awaitable[Task]] | None:
        queue = self._queue
        match outcome:
            case Acked(output):
                return lambda: queue.complete(claim, dump(output), progress=progress)
            case Retried(error, traceback, delay_s):
                return lambda: queue.fail(claim, error, traceback=traceback, delay_s=delay_s)
            case Dead(error, traceback):
                cancelled = outcome.cancelled
                return lambda: queue.fail(claim, error, traceback=traceback, permanent=True, cancelled=cancelled)
            case Released(_, delay_s, by_handler):
                again = queue.reschedule if by_handler else queue.release
                return lambda: again(claim, delay_s)
            case Lost():
                return None

    def _final_outcome(self, claim: Claim, outcome: Outcome, task: Task) -> Outcome:
        """Return the outcome that the written task shows, which may differ from the reported one."""
        if task.status is Status.FAILED:
            self._stats.terminal_failures += 1
            log.warning("%s %s has failed for good: %s", task.task_type, task.id, task.last_error)
            self._tell_failure(task, task.last_error or "")
        if task.status is Status.CANCELLED:
            self._stats.cancelled += 1
            return Dead(task.last_error or "cancelled while running")
        if task.status is Status.FAILED and not isinstance(outcome, Dead):
            timed_out = isinstance(outcome, Retried) and outcome.timed_out
            return Dead(task.last_error or "no attempt is left", timed_out=timed_out)
        if isinstance(outcome, Released) and task.status is Status.COMPLETED:
            return Acked(task.output)  # An earlier report came through although we gave it up.
        return outcome
