"""Health of the dispatcher: livez, readyz and metrics."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import Response
from sqlalchemy.exc import ProgrammingError

from qo.api.contract.body import Answer
from qo.dispatcher.http import metrics as exporter
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.state import schema
from qo.errors import CorruptRecord, Unavailable


class Health(Answer):
    status: str = "ok"


def livez(context: ContextParam) -> Health:
    """Say whether the process works; if not, restart it.

    A missing state database is no reason for a restart: see readyz.
    """
    troubles = context.troubles()
    if troubles and _database_problem(context) is None:
        raise Unavailable("; ".join(troubles))
    return Health()


def readyz(context: ContextParam) -> Health:
    """Say whether the state database answers and has its tables.

    Until it does, send requests elsewhere; a restart does not help.
    """
    if (problem := _database_problem(context)) is not None:
        raise Unavailable(problem)
    return Health()


def _database_problem(context: Context) -> str | None:
    try:
        with context.state.read() as tx:
            epoch = tx.value(sa.select(schema.topology.c.epoch))
    except Unavailable as error:
        return _EMPTY if "no such table" in str(error.__cause__) else str(error)
    except CorruptRecord as error:
        return str(error)
    except ProgrammingError:
        return _EMPTY
    return None if epoch is not None else _EMPTY


_EMPTY = "the state database has no tables yet: run qo db upgrade"


def metrics(context: ContextParam) -> Response:
    """Show the metrics, for Prometheus."""
    return Response(exporter.exposition(context), media_type=exporter.CONTENT_TYPE)


def install(routes: Routes) -> None:
    routes.get("/livez", livez)
    routes.get("/readyz", readyz)
    routes.get("/metrics", metrics, response_class=Response)
