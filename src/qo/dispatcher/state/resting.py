"""Connections to PostgreSQL that have rested are tried before they are used: the server, or something on the way, may
have closed them since. Under load none rests, and no round trip is spent on it."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError

RESTED_S = 1.0  # One that broke within this time fails the transaction that gets it, as one in use does.

_SINCE = "qo_rests_since"


def try_rested(engine: sa.Engine) -> None:
    dialect = engine.dialect

    def note_rest(_: Any, record: Any) -> None:
        record.info[_SINCE] = time.monotonic()

    def try_connection(connection: Any, record: Any, _: Any) -> None:
        since = record.info.get(_SINCE)
        if since is None or time.monotonic() - since < RESTED_S:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # The pool connects anew.

    event.listen(engine, "checkin", note_rest)
    event.listen(engine, "checkout", try_connection)
