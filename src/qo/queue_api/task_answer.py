"""Tasks as the API shows them: the stored fields, without those that only workers need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from qo.core import wire
from qo.core.task import Task
from qo.queue.queue import Queue
from qo.queue_api.operation import JSON

# How a task is kept and who may write it: nothing that a client can use. ``token`` is the ETag.
HIDDEN = frozenset({"format", "shard", "token", "lease_id", "settled_lease_id", "input_ref", "output_ref"})


def show(task: Task) -> dict[str, Any]:
    """Return the fields of the task. A value that is kept apart is missing; ``show_whole`` fetches it."""
    fields: dict[str, Any] = msgspec.to_builtins(task, builtin_types=(bytes,))
    apart = {"input": task.input_ref, "output": task.output_ref}
    return {name: value for name, value in fields.items() if name not in HIDDEN and not apart.get(name)}


async def show_whole(queue: Queue, task: Task) -> dict[str, Any]:
    """Return the fields of the task, with its input and output wherever those are kept. What is encrypted by a key that
    the server does not have stays encrypted."""
    whole = await queue.payloads.fetch_values(task)
    return {**show(task), "input": whole.input, "output": whole.output}


def etag_of(task: Task) -> str:
    """Return the ETag of a task: every change of it has another one."""
    return f'"{task.token}"'


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(wire.encode(value), status, headers, JSON)


def schemas() -> dict[str, Any]:
    """Return the schemas of a task and of its parts, by name."""
    _, components = msgspec.json.schema_components([Task], ref_template="#/components/schemas/{name}")
    components = wire.copy_json(components)  # Defaults that are tuples in Python are arrays.
    task = components["Task"]
    task["properties"] = {name: each for name, each in task["properties"].items() if name not in HIDDEN}
    task["required"] = [name for name in task["required"] if name not in HIDDEN]
    task["description"] = (
        "A task, as docs/reference/task-format.md describes its fields. In lists, a large input or output is missing."
    )
    return dict(components)
