"""The logs of attempts, read from where their workers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from qo.api.contract.run_log import LogLine, RunLog
from qo.core import run_log
from qo.core.run_log import Line
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import rows
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound
from qo.store.directory import Directory


@dataclass(frozen=True, slots=True)
class Page:
    lines: Sequence[Line]
    more: bool = False


def find_attempt(tx: Tx, task_id: str, attempt: int | None) -> tuple[Row, sa.RowMapping | None]:
    """Return the rows of a task and of one attempt: the last, unless a number is given. None: there was none yet.

    Raises NotFound for a task or an attempt that does not exist.
    """
    task = rows.load(tx, task_id, lock=False)
    table = schema.attempts
    query = sa.select(table).where(table.c.task_id == task_id)
    if attempt is None:
        return task, tx.one(query.order_by(table.c.attempt.desc()).limit(1))
    row = tx.one(query.where(table.c.attempt == attempt))
    if row is None:
        raise NotFound(f"task {task_id} has no attempt {attempt}: qo run show {task_id} lists them")
    return task, row


async def read_page(root: Directory, prefix: str, *, after: int, limit: int, last: int | None = None) -> Page:
    """Return the lines after the one numbered ``after``; with ``last``, that many from the end instead.

    A page may end at any line; ``more`` says whether there are others. Reads only the chunks that are needed.
    """
    names = await _list_chunks(root, prefix)
    if last is not None:
        return await _read_last(root, names, min(last, limit))
    lines: list[Line] = []
    for at in range(run_log.needed_from(list(names), after), len(names)):
        lines += [each for each in await _read_chunk(root, list(names.values())[at]) if each.n > after]
        if len(lines) >= limit:
            is_whole = len(lines) == limit and at == len(names) - 1
            return Page(lines[:limit], more=not is_whole)
    return Page(lines)


async def _read_last(root: Directory, names: Mapping[int, str], count: int) -> Page:
    lines: list[Line] = []
    for path in reversed(list(names.values())):
        lines = [*await _read_chunk(root, path), *lines]
        if len(lines) >= count:
            break
    return Page(lines[-count:])


def answer(task: Row, attempt: sa.RowMapping | None, page: Page, after: int | None) -> RunLog:
    """Return what is sent. ``after``: where the page begins; None: it is the end of the log."""
    before = after if after is not None else (page.lines[0].n - 1 if page.lines else 0)
    upto = page.lines[-1].n if page.lines else before
    return RunLog(
        task_id=task["id"],
        status=task["status"],
        attempt=None if attempt is None else attempt["attempt"],
        running=attempt is not None and attempt["ended_at"] is None,
        outcome=None if attempt is None else attempt["outcome"],
        error=None if attempt is None else attempt["error"],
        lines=[_show(each) for each in page.lines],
        after=upto,
        more=page.more,
        dropped=upto - before - len(page.lines),
    )


def _show(line: Line) -> LogLine:
    at = datetime.fromtimestamp(line.at, UTC)
    return LogLine(n=line.n, at=at, stream=line.stream, text=line.text, level=line.level, logger=line.logger)


async def _list_chunks(root: Directory, prefix: str) -> dict[int, str]:
    """Return the paths of the chunks by the numbers of their first lines, in order."""
    paths: dict[int, str] = {}
    try:
        async for page in root.list(under=prefix):
            for file in page:
                first = run_log.first_of(file.path.removeprefix(prefix))
                if first is not None and not file.is_link:
                    paths[first] = file.path
    except NotFound:
        return {}  # Nothing was written below this root yet.
    return dict(sorted(paths.items()))


async def _read_chunk(root: Directory, path: str) -> list[Line]:
    try:
        return run_log.decode(await root.read(path))
    except NotFound:
        return []  # Dropped by its writer since it was listed.
