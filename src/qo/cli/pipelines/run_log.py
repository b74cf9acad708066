"""What ``qo run logs`` prints: the lines of an attempt, and those that follow while it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qo.cli.invocation import Session
from qo.cli.output import one_line
from qo.cli.pipelines.dispatcher_client import route
from qo.core.task import Status
from qo.core.words import plural

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

PAGE = 5_000
POLL_S = 1.0
ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class LogPrinter:
    """Prints the log of a task, page by page."""

    def __init__(self, session: Session, task_id: str, attempt: int | None, last: int | None) -> None:
        self._session = session
        self._path = route("tasks", task_id, "log")
        self._requested = attempt
        self._attempt = attempt  # The one that is printed now.
        self._after = 0
        self._last = last

    async def print_all(self, client: UserClient) -> None:
        """Print what there is."""
        lines: list[Any] = []
        while True:
            page = await self._next_page(client)
            if self._session.json:
                lines += page["lines"]
            else:
                self._print_lines(page)
            if not page["more"]:
                break
        if self._session.json:
            self._session.output.document({**page, "lines": lines})
            return
        self._print_end(page)

    async def follow(self, client: UserClient) -> None:
        """Print lines as they come, until the attempt has ended; if none was chosen, until the task has."""
        while True:
            page = await self._next_page(client)
            self._print_lines(page)
            if page["more"]:
                continue
            is_over = not page["running"] and page["attempt"] is not None
            if is_over and self._requested is None and await self._begin_next_attempt(client):
                self._print_end(page)
                continue
            if (is_over and self._requested is not None) or (not page["running"] and page["status"] in ENDED):
                self._print_end(page)
                return
            await asyncio.sleep(POLL_S)

    async def _next_page(self, client: UserClient) -> dict[str, Any]:
        query = {"after": self._after} if self._last is None else {"last": self._last}
        page = await client.get(self._path, attempt=self._attempt, limit=PAGE, **query)
        self._last = None
        self._attempt, self._after = page["attempt"], page["after"]
        return page

    async def _begin_next_attempt(self, client: UserClient) -> bool:
        newest, current = (await client.get(self._path, limit=1))["attempt"], self._attempt
        if current is None or newest <= current:
            return False
        self._attempt, self._after = current + 1, 0
        return True

    def _print_lines(self, page: Mapping[str, Any]) -> None:
        output = self._session.output
        if page["dropped"] and not self._session.json:
            output.note(f"{plural(page['dropped'], 'line')} among the following were not kept")
        for line in page["lines"]:
            output.line(_compact(line) if self._session.json else format_line(line))
        sys.stdout.flush()

    def _print_end(self, page: Mapping[str, Any]) -> None:
        if self._session.json:
            return
        note = self._session.output.note
        if page["attempt"] is None:
            note(f"there was no attempt yet: the task is {page['status']}")
        elif page["running"]:
            note(f"attempt {page['attempt']} is running; --follow prints what comes")
        else:
            error = f": {one_line((page['error'] or '').partition(chr(10))[0])}" if page["error"] else ""
            note(f"attempt {page['attempt']} {(page['outcome'] or 'ended').replace('_', ' ')}{error}")


def format_line(line: Mapping[str, Any]) -> str:
    """Return a line for people: its time (UTC), where it comes from, and its text."""
    at = datetime.fromisoformat(line["at"]).astimezone(UTC)
    origin = line["stream"] if line["level"] is None else f"{line['level']} {line['logger']}:"
    text = one_line(line["text"].expandtabs())
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}  {origin}  {text}".rstrip()


def _compact(line: Mapping[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(line).decode()
