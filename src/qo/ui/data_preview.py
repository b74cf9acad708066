"""The first rows of a dataset, for its page.

The dispatcher never reads data. This process does, with the rights of whoever started it, as `qo dataset preview` does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any
from urllib.parse import parse_qs, urlencode

from qo.api.first_rows import first_rows
from qo.config.settings import Settings
from qo.errors import NotFound, QoError, UsageError
from qo.http_server.messages import Reply, Request
from qo.ui.forwarding import Dispatcher, problem_reply

ROWS_MAX = 200
TEXT_MAX = 500  # Characters of a value.


class _Refusal(Exception):
    """A reply of the dispatcher that is not what was asked for; the page gets it as it is."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class _Client:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def get(self, path: str, **params: Any) -> Any:
        query = urlencode({name: value for name, value in params.items() if value is not None})
        reply = await self._dispatcher.ask(Request("GET", path, query, {}))
        if reply.status != 200:
            raise _Refusal(reply)
        return json.loads(reply.body)


class Previews:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def concerns(self, method: str, segments: Sequence[str]) -> bool:
        """Tell whether a request is for the preview of a dataset."""
        match [method, *segments]:
            case ["GET", "v1", "datasets", _, "preview"]:
                return True
            case _:
                return False

    async def answer(self, dispatcher: Dispatcher, path: str, query: str) -> Reply:
        """Answer with the columns and the first rows of the dataset whose pieces are at this path."""
        options = parse_qs(query)
        try:
            limit = _limit(options.get("limit", ["20"])[0])
            partition = options.get("partition", [None])[0]
            columns, rows = await first_rows(_Client(dispatcher), self._settings, path, limit, partition, None)
        except _Refusal as refusal:
            return refusal.reply
        except UsageError as error:
            return problem_reply(400, "usage", str(error))
        except NotFound as error:
            return problem_reply(404, "not_found", str(error))
        except (QoError, OSError) as error:
            return problem_reply(409, "refused", str(error))
        body = json.dumps({"columns": columns, "rows": [_shorten(row) for row in rows]}).encode()
        return Reply(200, body, {"Content-Type": "application/json", "Cache-Control": "no-store"})


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= ROWS_MAX:
        raise UsageError(f"limit must be between 1 and {ROWS_MAX}, not {text!r}")
    return int(text)


def _shorten(row: Sequence[Any]) -> list[Any]:
    return [_plain(value) for value in row]


def _plain(value: Any) -> Any:
    """Return what JSON can hold, and a browser shows without losing digits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        value = value.hex()
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
