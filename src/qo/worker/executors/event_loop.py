"""The executor of async handlers: it calls them in the worker's event loop."""

from __future__ import annotations

from typing import Any

from qo.worker.api.request import Request


class LoopExecutor:
    """Cancelling the call cancels the function, so that no call is ever abandoned."""

    async def call(self, request: Request) -> Any:
        function = request.handler.function
        if request.handler.wants_context:
            return await function(request.input, request.context)
        return await function(request.input)

    def is_running(self, task_id: str) -> bool:
        return False

    def close(self) -> None:
        pass
