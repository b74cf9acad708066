"""The calls that only look: show, list, history, wait, watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from starlette.responses import Response, StreamingResponse

from qo.core import wire
from qo.core.task import Status, Task
from qo.errors import QoError
from qo.queue.list_page import PAGE_MAX, read_page
from qo.queue.listing import Filter
from qo.queue_api.operation import (
    Call,
    Operation,
    Parameter,
    choice_of,
    duration_of,
    instant_of,
    text_of,
    whole_of,
)
from qo.queue_api.task_answer import etag_of, json_response, show, show_whole

log = logging.getLogger(__name__)

WAIT_S, WAIT_S_MAX = 30.0, 60.0
STREAM_S = 300.0  # Then a stream ends, and its client connects again.
COMMENT_S = 15.0  # Proxies cut connections on which nothing is sent for long.
RECONNECT_MS = 1_000
LIST_LIMIT = 100
READS_PER_REQUEST = 10  # What reads many objects counts as several requests: each object costs time and money.

TASK: Mapping[str, Any] = {"$ref": "#/components/schemas/Task"}
TASK_ID = Parameter("task_id", "path", text_of, {"type": "string"}, "The task's id.")


async def show_task(call: Call) -> Response:
    """Show a task as it is now.

    With the ETag of an earlier answer as If-None-Match, the answer is 304 while the task is unchanged.
    """
    task = await call.queue.get(call.arguments["task_id"])
    headers = {"ETag": etag_of(task), "Cache-Control": "no-cache"}
    if etag_of(task) in [each.strip() for each in (call.header("if-none-match") or "").split(",")]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return json_response(await show_whole(call.queue, task), headers=headers)


async def list_tasks(call: Call) -> Response:
    """List tasks, last changed first; archived ones only if asked for.

    A page may have fewer tasks than the limit, or none, and yet be followed by another: go on until next is null. In a
    queue with more than 100,000 tasks, an evenly spread part of them is listed, and complete is false.
    """
    values = call.arguments
    status = None if values["status"] is None else Status(values["status"])
    criteria = Filter(status=status, task_type=values["type"], shard=values["shard"], since=values["since"])
    page = await read_page(call.queue.store, call.queue.prefix_len, criteria, values["limit"], values["after"])
    call.rates.owe(call.caller, page.reads // READS_PER_REQUEST)
    tasks = [show(call.queue.payloads.reveal(task)) for task in page.tasks]
    return json_response({"tasks": tasks, "next": page.next, "complete": page.complete})


async def show_history(call: Call) -> Response:
    """Show every state that a task has been in, oldest first."""
    states = await call.queue.history(call.arguments["task_id"])
    call.rates.owe(call.caller, len(states) // READS_PER_REQUEST)
    return json_response({"states": [show(task) for task in states]})


async def wait_for_task(call: Call) -> Response:
    """Wait until a task has ended, and show it.

    The answer is 200 once it has, and 202, with the task as it is then, if it has not within the timeout: ask again.
    """
    time = asyncio.get_running_loop().time
    deadline = time() + call.arguments["timeout"]
    task = await call.queue.get(call.arguments["task_id"])
    while not task.ended:
        left_s = deadline - time()
        changed = await call.watcher.next_state(task.id, after=task.token, timeout_s=left_s)
        if changed is None:
            return json_response(show(task), HTTPStatus.ACCEPTED, {"ETag": etag_of(task)})
        task = changed
    return json_response(await show_whole(call.queue, task), headers={"ETag": etag_of(task)})


async def watch_task(call: Call) -> Response:
    """Send the task as a server-sent event now, and again whenever it has changed, until it has ended.

    Each event is named task, has the task as its data, and an id. A client that reconnects with that id as
    Last-Event-ID gets the present state only if it is another one; if the task had ended, the answer is 204, upon
    which browsers stop to reconnect. States between two connections are in the task's history.
    """
    task = await call.queue.get(call.arguments["task_id"])
    last_token = call.header("last-event-id")
    if task.ended and last_token == task.token:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(call, task, last_token), media_type="text/event-stream", headers=headers)


async def _events(call: Call, task: Task, last_token: str | None) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(_changes(call, task, last_token)) as events:
            async for event in events:
                yield event
    except QoError as error:
        # The status was sent long ago. Whoever connects again gets the error as an answer.
        log.warning("the events of task %s end early: %s", task.id, error)


async def _changes(call: Call, task: Task, last_token: str | None) -> AsyncGenerator[bytes]:
    time = asyncio.get_running_loop().time
    deadline = time() + STREAM_S
    yield f"retry: {RECONNECT_MS}\n\n".encode()
    while True:
        if task.token != last_token:
            last_token = task.token
            data = await show_whole(call.queue, task) if task.ended else show(task)
            yield b"id: %b\nevent: task\ndata: %b\n\n" % (task.token.encode(), wire.encode(data))
        left_s = deadline - time()
        if task.ended or left_s <= 0 or call.watcher.is_stopped:
            return
        changed = await call.watcher.next_state(task.id, after=task.token, timeout_s=min(left_s, COMMENT_S))
        if changed is None:
            yield b": still here\n\n"
        else:
            task = changed


_STATUSES = [str(status) for status in Status]
_LIST = (
    Parameter("status", "query", choice_of(_STATUSES), {"enum": _STATUSES}, "Only tasks of this status."),
    Parameter("type", "query", text_of, {"type": "string"}, "Only tasks of this type."),
    Parameter("shard", "query", text_of, {"type": "string"}, "Only tasks of this shard."),
    Parameter(
        "since", "query", instant_of, {"type": "string", "format": "date-time"}, "Only tasks changed since then."
    ),
    Parameter(
        "limit",
        "query",
        whole_of(1, PAGE_MAX),
        {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": LIST_LIMIT},
        "How many at most.",
        LIST_LIMIT,
    ),
    Parameter("after", "query", text_of, {"type": "string"}, "Where the page before ended: its next."),
)
_TIMEOUT = Parameter(
    "timeout",
    "query",
    duration_of(0, WAIT_S_MAX),
    {"type": "string", "default": f"{WAIT_S:g}s"},
    f"How long to wait, as 30 or 30s; at most {WAIT_S_MAX:g} s.",
    WAIT_S,
)
_PAGE = {
    "type": "object",
    "required": ["tasks", "next", "complete"],
    "properties": {
        "tasks": {"type": "array", "items": TASK},
        "next": {
            "type": ["string", "null"],
            "description": "Pass it as after for the following page; null: none.",
        },
        "complete": {"type": "boolean", "description": "False: the queue has more tasks than are looked at."},
    },
}
_STATES = {
    "type": "object",
    "required": ["states"],
    "properties": {"states": {"type": "array", "items": TASK}},
}
_EVENT = {
    "type": "object",
    "description": "One event: its data is the task, as JSON.",
    "properties": {"id": {"type": "string"}, "event": {"const": "task"}, "data": {"type": "string"}},
}
_IF_NONE_MATCH = Parameter(
    "If-None-Match", "header", text_of, {"type": "string"}, "The ETag of an earlier answer."
)
_LAST_EVENT = Parameter(
    "Last-Event-ID", "header", text_of, {"type": "string"}, "The id of the last event that was received."
)

OPERATIONS = (
    Operation("GET", "/tasks", list_tasks, _LIST, answers={200: ("A page of tasks.", _PAGE)}),
    Operation(
        "GET",
        "/tasks/{task_id}",
        show_task,
        (TASK_ID, _IF_NONE_MATCH),
        answers={200: ("The task.", TASK), 304: ("It is unchanged.", None)},
        problems=(404,),
    ),
    Operation(
        "GET",
        "/tasks/{task_id}/history",
        show_history,
        (TASK_ID,),
        answers={200: ("Its states.", _STATES)},
        problems=(404,),
    ),
    Operation(
        "GET",
        "/tasks/{task_id}/wait",
        wait_for_task,
        (TASK_ID, _TIMEOUT),
        answers={200: ("The task, which has ended.", TASK), 202: ("It has not ended yet: ask again.", TASK)},
        problems=(404,),
    ),
    Operation(
        "GET",
        "/tasks/{task_id}/events",
        watch_task,
        (TASK_ID, _LAST_EVENT),
        answers={200: ("Events.", _EVENT), 204: ("It had ended when it was last shown.", None)},
        problems=(404,),
        media_type="text/event-stream",
    ),
)
