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

    def check(self, value: Any, what: str) -> bytes:
        """The value as JSON; a UsageError if it has no JSON form or is too large for any object of ours."""
        body = wire.encode_payload(value, what)
        if len(body) > INPUT_BYTES_MAX:
            raise UsageError(
                f"{what} is {len(body):,} bytes of JSON; at most {INPUT_BYTES_MAX:,} are taken. "
                "Put the data in the bucket yourself and pass its key."
            )
        return body

    async def offload_input(self, task: Task, body: bytes) -> Task:
        """The task as it should be stored: with its input, or with a reference to where that was put."""
        if len(body) <= self._threshold_bytes:
            return task
        ref = keys.input_data(task.shard, task.id, hashlib.sha256(body).hexdigest())
        await self._store.put(ref, body)
        return replace(task, input=None, input_ref=ref)

    async def offload_output(self, task: Task, output: Any) -> tuple[Any, str | None]:
        """What to store of a handler's result: the value, or a reference to it."""
        body = self.check(output, "the output")
        if len(body) <= self._threshold_bytes:
            return output, None
        ref = keys.output_data(task.shard, task.id, task.attempt)
        await self._store.put(ref, body)
        return None, ref

    async def input(self, task: Task) -> Any:
        return task.input if task.input_ref is None else await self._fetch(task.input_ref)

    async def output(self, task: Task) -> Any:
        return task.output if task.output_ref is None else await self._fetch(task.output_ref)

    async def _fetch(self, ref: str) -> Any:
        stored = await self._store.get(ref)
        if stored is None:
            raise CorruptRecord(f"{ref} is missing: a task refers to it, but somebody deleted it")
        return wire.decode(object, stored.body, ref)
