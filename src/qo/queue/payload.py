"""Inputs and outputs too large for the task object, kept beside it under ``data/``.

The data is written before the task that refers to it: a reference always leads somewhere.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.task import Task
from qo.errors import CorruptRecord, UsageError
from qo.store.port import ObjectStore

INPUT_BYTES_MAX = 64 * 1024 * 1024


class Payloads:
    def __init__(self, store: ObjectStore, threshold_bytes: int) -> None:
        self._store = store
        self._threshold_bytes = threshold_bytes

    def take(self, value: Any, what: str) -> wire.Payload:
        """Return a copy of the user's value and its JSON. Raises UsageError if it has none or is too large."""
        payload = wire.payload(value, what)
        if len(payload.body) > INPUT_BYTES_MAX:
            raise UsageError(
                f"{what} is {len(payload.body):,} bytes of JSON; at most {INPUT_BYTES_MAX:,} are taken. "
                "Put the data in the bucket yourself and pass its key."
            )
        return payload

    async def offload_input(self, task: Task, body: bytes) -> Task:
        """Return the task as it should be stored: with its input, or with a reference to the object that holds it."""
        if len(body) <= self._threshold_bytes:
            return task
        ref = keys.input_data(task.shard, task.id, hashlib.sha256(body).hexdigest())
        await self._store.put(ref, body)
        return replace(task, input=None, input_ref=ref)

    async def offload_output(self, task: Task, output: Any) -> tuple[Any, str | None]:
        """Return the value to store in the task, or a reference to the object that holds it."""
        value, body = self.take(output, "the output")
        if len(body) <= self._threshold_bytes:
            return value, None
        ref = keys.output_data(task.shard, task.id, task.attempt)
        await self._store.put(ref, body)
        return None, ref

    async def input(self, task: Task) -> Any:
        """Return a copy of the input: changing it does not change the task."""
        return wire.copy_json(task.input) if task.input_ref is None else await self._fetch(task, task.input_ref)

    async def output(self, task: Task) -> Any:
        return wire.copy_json(task.output) if task.output_ref is None else await self._fetch(task, task.output_ref)

    async def _fetch(self, task: Task, ref: str) -> Any:
        # The writer of a task chooses the reference, and may have fewer rights than the reader who follows it.
        if not keys.is_data_of(task.shard, task.id, ref):
            raise CorruptRecord(f"task {task.id} refers to {ref!r}, which is not its own")
        stored = await self._store.get(ref)
        if stored is None:
            raise CorruptRecord(f"{ref} is missing: a task refers to it, but somebody deleted it")
        return wire.decode(object, stored.body, ref)
