"""The API of the queue on the public listener, for the tokens of people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import BaseRoute

from qo.dispatcher.http import callers
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.rights import Need
from qo.queue_api.api_rights import RIGHTS, Role
from qo.queue_api.api_routes import build_mount
from qo.queue_api.guard import Caller
from qo.queue_api.queue_server import queue_api

PREFIX = "/v1/queue"


class UserGuard:
    """Accepts the tokens of the dispatcher: a reader may do what a viewer of the queue may, a writer everything."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def authorise(self, request: Request, operation: str) -> Caller:
        need = Need.READER if Role.VIEWER in RIGHTS[operation] else Need.WRITER
        caller = await callers.authorise(request, self._context, f"queue_{operation}", need)
        return Caller(caller.name, caller.name)


def queue_routes(context: Context) -> list[BaseRoute]:
    """Return the routes, if the context has a queue to serve."""
    if context.queue is None:
        return []
    api = queue_api(context.queue, context.settings, UserGuard(context))
    context.on_stop.append(api.watcher.stop)
    return [build_mount(PREFIX, api)]
