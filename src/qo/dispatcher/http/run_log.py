"""The route of the logs of attempts."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query

from qo.api.contract.run_log import LINES_MAX, RunLog
from qo.config.settings import Settings
from qo.core.run_log import prefix_of
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.http.tasks import TaskId
from qo.dispatcher.views import run_log
from qo.dispatcher.views.run_log import Page
from qo.errors import Refused, StoreError, Unavailable
from qo.store.directory import open_directory


def show_log(
    context: ContextParam,
    task_id: TaskId,
    attempt: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Which attempt; unset: the last.")
    ] = None,
    after: Annotated[int, Query(ge=0, le=2**53, description="Only lines after this one: its number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=LINES_MAX, description="How many lines at most.")] = 1000,
    last: Annotated[
        int | None, Query(ge=1, le=LINES_MAX, description="That many lines from the end; after is ignored.")
    ] = None,
) -> RunLog:
    """Show what an attempt has printed and logged. Ask again after the last line while it is running."""
    with context.state.read() as tx:
        task, row = run_log.find_attempt(tx, task_id, attempt)
    if row is None:
        return run_log.answer(task, None, Page(()), after)
    # Afterwards: an attempt ends when its log is written, so the log of one that has ended is whole.
    prefix = prefix_of(task_id, row["attempt"], row["started_at"])
    page = _read(context.settings, prefix, after, limit, last)
    return run_log.answer(task, row, page, None if last is not None else after)


def _read(settings: Settings, prefix: str, after: int, limit: int, last: int | None) -> Page:
    """Raises Unavailable if a retry may help, else Refused."""

    async def read() -> Page:
        root = await open_directory(settings.dispatcher.data_root, settings)
        try:
            return await run_log.read_page(root, prefix, after=after, limit=limit, last=last)
        finally:
            await root.close()

    try:
        return asyncio.run(read())  # On a thread of its own, as all operations of people.
    except Unavailable:
        raise
    except StoreError as error:
        raise Refused(f"the bucket of the logs refuses: {error}") from None
    except OSError as error:
        raise Unavailable(f"the log cannot be read: {error.strerror}") from None


def install(routes: Routes) -> None:
    routes.get("/v1/tasks/{task_id}/log", show_log, 404, 409)
