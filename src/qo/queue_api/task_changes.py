"""The calls that change something: submit, cancel, replay, archive, unarchive."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, cast

from starlette.responses import Response

from qo.asgi.error_responses import classify
from qo.core.task import Task
from qo.errors import QoError, UsageError
from qo.queue.options import NewTask
from qo.queue.submissions import BadTasks, submit_each
from qo.queue.submitter import Submission
from qo.queue.task_document import read_document
from qo.queue_api.operation import Call, Operation, Parameter, text_of
from qo.queue_api.task_answer import etag_of, json_response, show
from qo.queue_api.task_reading import TASK, TASK_ID
from qo.queue_api.task_schema import CANCEL, MANY, NEW, REASON_CHARS_MAX, RESULTS, TASKS_MAX

log = logging.getLogger(__name__)


async def submit_task(call: Call) -> Response:
    """Submit a task. It is durable when the answer comes.

    The same idempotency key, in the header or as key in the body, always names the same task: 201 the first time, 200
    later. 409 if the key was used for another type or input. A traceparent header is kept with the task.
    """
    new = _with_headers(call, read_document(_require(await call.document()), "the body"))
    prepared = call.queue.prepare(new, await call.queue.store.now())
    task, created = await call.queue.create(prepared)
    status = HTTPStatus.CREATED if created else HTTPStatus.OK
    log.debug("task %s of type %s was submitted by %s", task.id, task.task_type, call.caller.name)
    headers = {"ETag": etag_of(task), "Location": f"{call.request.url.path}/{task.id}"}
    return json_response(show(task), status, headers)


async def submit_tasks(call: Call) -> Response:
    """Submit many tasks.

    All are checked before the first is written: if one is wrong, the answer is 400, and nothing was written. Otherwise
    the results are in the order of the tasks: each has a task, or the error of this one. With an Idempotency-Key
    header, tasks without a key of their own get its text, a slash and their position as theirs; so the whole request
    can be repeated.
    """
    documents = _require_list(await call.document())
    call.rates.owe(call.caller, len(documents) - 1)  # One was counted as the request.
    tasks: list[NewTask] = []
    problems: list[str] = []
    for position, document in enumerate(documents):
        try:
            tasks.append(_with_headers(call, read_document(document, f"tasks[{position}]"), position))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise BadTasks(problems)
    results = await submit_each(call.queue, tasks)
    return json_response({"results": [_result(each) for each in results]})


def _require(document: Any) -> Any:
    if document is None:
        raise UsageError('the body is missing: send a task such as {"type": "send_email", "input": {}}')
    return document


def _require_list(document: Any) -> list[Any]:
    value: Any = cast("dict[str, Any]", document).get("tasks") if isinstance(document, dict) else document
    if not isinstance(value, list) or not value:
        raise UsageError('expected {"tasks": [{"type": "send_email", "input": {}}]}, with at least one task')
    tasks = cast("list[Any]", value)
    if len(tasks) > TASKS_MAX:
        raise UsageError(f"{len(tasks):,} tasks are more than the {TASKS_MAX:,} of one request: send several")
    return tasks


def _with_headers(call: Call, new: NewTask, position: int | None = None) -> NewTask:
    """Return the task with the key and the trace that the headers name, if it has none of its own."""
    options, key = new.options, call.header("idempotency-key")
    if key is not None and position is None and options.key not in (None, key):
        raise UsageError("the header Idempotency-Key and the key in the body differ: send one of them")
    if key is not None and options.key is None:
        options = replace(options, key=key if position is None else f"{key}/{position}")
    if options.traceparent is None and (trace := call.header("traceparent")) is not None:
        options = replace(options, traceparent=trace[:100])
    return replace(new, options=options)


def _result(result: Submission | QoError) -> dict[str, Any]:
    if isinstance(result, Submission):
        return {"task": show(result.task), "created": result.created}
    status, code = classify(result)
    return {"error": {"status": int(status), "code": code, "error": str(result)}}


async def cancel_task(call: Call) -> Response:
    """Cancel a pending task at once; ask a running one to stop."""
    document: Any = await call.document() or {}
    if not isinstance(document, dict) or set(cast("dict[str, Any]", document)) - {"reason"}:
        raise UsageError('expected {"reason": "a text"}, or no body')
    reason: Any = cast("dict[str, Any]", document).get("reason")
    if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX):
        raise UsageError(f"reason must be a text of at most {REASON_CHARS_MAX} characters")

    async def cancel(task_id: str) -> Task:
        return await call.queue.cancel(task_id, by=call.caller.name, reason=reason)

    return await _operate(call, "cancelled", cancel)


async def replay_task(call: Call) -> Response:
    """Run a failed, cancelled or expired task again, with all its retries."""
    return await _operate(call, "replayed", call.queue.replay)


async def archive_task(call: Call) -> Response:
    """Leave an ended task out of lists."""
    return await _operate(call, "archived", call.queue.archive)


async def unarchive_task(call: Call) -> Response:
    """Take a task out of the archive."""
    return await _operate(call, "taken out of the archive", call.queue.unarchive)


async def _operate(call: Call, action: str, change: Callable[[str], Awaitable[Task]]) -> Response:
    task = await change(call.arguments["task_id"])
    log.info("task %s was %s by %s", task.id, action, call.caller.name)
    call.watcher.note(task)
    return json_response(show(task), headers={"ETag": etag_of(task)})


_KEY = Parameter("Idempotency-Key", "header", text_of, {"type": "string"}, "The same key names the same task.")


def _action(
    path: str, endpoint: Callable[[Call], Awaitable[Response]], body: Mapping[str, Any] | None = None
) -> Operation:
    return Operation(
        "POST",
        f"/tasks/{{task_id}}/{path}",
        endpoint,
        (TASK_ID,),
        body=body,
        body_required=False,
        answers={200: ("The task as it is now.", TASK)},
        problems=(404, 409),
    )


OPERATIONS = (
    Operation(
        "POST",
        "/tasks",
        submit_task,
        (_KEY,),
        body=NEW,
        answers={201: ("The new task.", TASK), 200: ("The task that the key named before.", TASK)},
        problems=(409,),
    ),
    Operation(
        "POST",
        "/tasks/batch",
        submit_tasks,
        (_KEY,),
        body=MANY,
        answers={200: ("What became of each.", RESULTS)},
    ),
    _action("cancel", cancel_task, CANCEL),
    _action("replay", replay_task),
    _action("archive", archive_task),
    _action("unarchive", unarchive_task),
)
