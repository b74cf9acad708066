"""Whether the dispatcher is alive, and whether it can do its work."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import Response
from sqlalchemy.exc import ProgrammingError

from qo.api.contract.body import Answer
from qo.dispatcher.http import metrics as exposed
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.state import schema
from qo.errors import CorruptRecord, Unavailable


class Health(Answer):
    status: str = "ok"


def livez(context: ContextParam) -> Health:
    """Say whether the process does its work; if not, it should be replaced.

    Without the state database nobody can: that is no reason to replace it, see readyz.
    """
    troubles = context.troubles()
    if troubles and _database(context) is None:
        raise Unavailable("; ".join(troubles))
    return Health()


def readyz(context: ContextParam) -> Health:
    """Say whether the state database answers and has its tables.

    Until it does, send requests elsewhere; a restart does not help.
    """
    if (missing := _database(context)) is not None:
        raise Unavailable(missing)
    return Health()


def _database(context: Context) -> str | None:
    """What is wrong with it, if anything."""
    try:
        with context.state.read() as tx:
            known = tx.value(sa.select(schema.topology.c.epoch))
    except Unavailable as error:
        return _EMPTY if "no such table" in str(error.__cause__) else str(error)
    except CorruptRecord as error:
        return str(error)
    except ProgrammingError:
        return _EMPTY
    return None if known is not None else _EMPTY


_EMPTY = "the state database has no tables yet: run qo db upgrade"


def metrics(context: ContextParam) -> Response:
    """Show the metrics, for Prometheus."""
    return Response(exposed.exposition(context), media_type=exposed.CONTENT_TYPE)


def install(routes: Routes) -> None:
    routes.get("/livez", livez)
    routes.get("/readyz", readyz)
    routes.get("/metrics", metrics, response_class=Response)
