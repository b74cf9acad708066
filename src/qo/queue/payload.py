"""Inputs and outputs too large for the task object, kept beside it under ``data/``.

The data is written before the task that refers to it: a reference always leads somewhere.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.sealed import PREFIX, format_sealed, is_sealed, parse_sealed
from qo.core.task import Task
from qo.errors import CorruptRecord, Refused, UsageError
from qo.queue.sealer import Sealer, missing_key
from qo.store.port import ObjectStore

INPUT_BYTES_MAX = 64 * 1024 * 1024


class Payloads:
    def __init__(self, store: ObjectStore, threshold_bytes: int, sealer: Sealer | None = None) -> None:
        """``sealer`` encrypts what users put into tasks; None: it is stored as it is."""
        self._store = store
        self._threshold_bytes = threshold_bytes
        self._sealer = sealer

    def take(self, value: Any, what: str) -> wire.Payload:
        """Return a copy of the user's value and its JSON. Raises UsageError if it has none or is too large."""
        payload = wire.payload(value, what)
        if len(payload.body) > INPUT_BYTES_MAX:
            raise UsageError(
                f"{what} is {len(payload.body):,} bytes of JSON; at most {INPUT_BYTES_MAX:,} are taken. "
                "Put the data in the bucket yourself and pass its key."
            )
        if is_sealed(payload.value):
            raise UsageError(
                f"{what} begins with {PREFIX!r}, which marks encrypted values: begin it with something else"
            )
        return payload

    async def offload_input(self, task: Task, body: bytes) -> Task:
        """Return the task as it should be stored: with its input, or with a reference to the object that holds it."""
        if self._sealer is None:
            digest, value = hashlib.sha256(body).hexdigest(), task.input
        else:
            digest, value = self._sealer.fingerprint(body, task.id), self._seal(body, task.id, "input")
            body = wire.encode(value)
        if len(body) <= self._threshold_bytes:
            return replace(task, input=value) if value is not task.input else task
        ref = keys.input_data(task.shard, task.id, digest)
        await self._store.put(ref, body)
        return replace(task, input=_without_data(value), input_ref=ref)

    async def offload_output(self, task: Task, output: Any) -> tuple[Any, str | None]:
        """Return the value to store in the task, or a reference to the object that holds it."""
        value, body = self.take(output, "the output")
        if self._sealer is not None:
            value = self._seal(body, task.id, "output")
            body = wire.encode(value)
        if len(body) <= self._threshold_bytes:
            return value, None
        ref = keys.output_data(task.shard, task.id, task.attempt)
        await self._store.put(ref, body)
        return _without_data(value), ref

    def seal_progress(self, task_id: str, progress: Any) -> Any:
        """Return the progress as it should be stored; None stays None."""
        if progress is None:
            return None
        value, body = self.take(progress, "the progress")
        return value if self._sealer is None else self._seal(body, task_id, "progress")

    def seal_text(self, task_id: str, field: str, text: str) -> str:
        """Return an error or a traceback as it should be stored."""
        if self._sealer is None:
            return f" {text}" if is_sealed(text) else text  # Not to be mistaken for an encrypted one.
        return self._sealer.seal(text.encode(), task_id, field)

    def seal_input_of(self, owner: str, value: Any) -> Any:
        """Return the input that something other than a task holds, a schedule say, as it should be stored."""
        return (
            value if self._sealer is None or is_sealed(value) else self._seal(wire.encode(value), owner, "input")
        )

    def open_input_of(self, owner: str, value: Any) -> Any:
        """Return the input that something other than a task holds. Raises as ``stored_input`` does."""
        self.require_sealed(value, owner, "input")
        return self._open(owner, "input", value)

    def can_open(self, task: Task) -> bool:
        """Whether the task's input can be read here: it is not encrypted, or this process has the key."""
        sealed = parse_sealed(task.input)
        return sealed is None or (self._sealer is not None and self._sealer.has_key(sealed.key_id))

    async def input(self, task: Task) -> Any:
        """Return a copy of the input: changing it does not change the task.

        Raises Refused if it is encrypted and the key is not here, CorruptRecord if it was tampered with.
        """
        return self._open(
            task.id, "input", task.input if task.input_ref is None else await self._fetch(task, task.input_ref)
        )

    async def stored_input(self, task: Task) -> Any:
        """As ``input``, for a task as it is stored: also raises Refused if its input should be encrypted and is not."""
        value = task.input if task.input_ref is None else await self._fetch(task, task.input_ref)
        self.require_sealed(value, f"task {task.id}", "input")
        return self._open(task.id, "input", value)

    async def stored_output(self, task: Task) -> Any:
        """As ``output``, for a task as it is stored: also raises Refused if it should be encrypted and is not."""
        value = task.output if task.output_ref is None else await self._fetch(task, task.output_ref)
        self.require_sealed(value, f"task {task.id}", "output")
        return self._open(task.id, "output", value)

    def require_sealed(self, value: Any, owner: str, field: str) -> None:
        """Raise Refused if a stored value should be encrypted here and is not: somebody without the key wrote it."""
        if self._sealer is not None and self._sealer.required and value is not None and not is_sealed(value):
            raise Refused(f"the {field} of {owner} is not encrypted, and encryption.required is set")

    def conceal(self, text: str, purpose: str) -> list[str]:
        """Return a name for a text by each encryption key, the current one first: none without a key. A name confirms
        no guess of the text to whoever lacks the key."""
        return [] if self._sealer is None else self._sealer.pseudonyms(text, purpose)

    async def output(self, task: Task) -> Any:
        return self._open(
            task.id, "output", task.output if task.output_ref is None else await self._fetch(task, task.output_ref)
        )

    async def fetch_values(self, task: Task) -> Task:
        """Return the task with its input and output, wherever those are stored. What is encrypted by a key that is not
        here stays as it is."""
        with suppress(Refused):
            task = replace(task, input=await self.input(task))
        with suppress(Refused):
            task = replace(task, output=await self.output(task))
        return task

    def reveal(self, task: Task) -> Task:
        """Return the task with its encrypted values decrypted, as far as they are in it and their keys are here."""
        if not (
            is_sealed(task.input)
            or is_sealed(task.output)
            or is_sealed(task.progress)
            or is_sealed(task.last_error)
        ):
            return task
        return replace(
            task,
            input=task.input if task.input_ref else self._try_open(task.id, "input", task.input),
            output=task.output if task.output_ref else self._try_open(task.id, "output", task.output),
            progress=self._try_open(task.id, "progress", task.progress),
            last_error=self._try_open_text(task.id, "last_error", task.last_error),
            traceback=self._try_open_text(task.id, "traceback", task.traceback),
        )

    def _seal(self, body: bytes, owner: str, field: str) -> Any:
        if self._sealer is None or body == b"null":  # That there is nothing is no secret.
            return None
        return self._sealer.seal(body, owner, field)

    def _open(self, owner: str, field: str, value: Any) -> Any:
        if not is_sealed(value):
            return wire.copy_json(value)
        if (sealed := parse_sealed(value)) is None:
            raise CorruptRecord(f"the {field} of {owner} begins as an encrypted value does, and is none")
        if self._sealer is None:
            raise Refused(missing_key(sealed.key_id, owner, field))
        return wire.decode(object, self._sealer.open(sealed, owner, field), f"the {field} of {owner}")

    def _try_open(self, owner: str, field: str, value: Any) -> Any:
        try:
            return self._open(owner, field, value)
        except (Refused, CorruptRecord):
            return value  # Readers without the key see that it is encrypted, and with which key.

    def _try_open_text(self, owner: str, field: str, text: str | None) -> str | None:
        sealed = parse_sealed(text)
        if sealed is None or self._sealer is None:
            return text
        try:
            return self._sealer.open(sealed, owner, field).decode()
        except (Refused, CorruptRecord):
            return text

    async def _fetch(self, task: Task, ref: str) -> Any:
        # The writer of a task chooses the reference, and may have fewer rights than the reader who follows it.
        if not keys.is_data_of(task.shard, task.id, ref):
            raise CorruptRecord(f"task {task.id} refers to {ref!r}, which is not its own")
        stored = await self._store.get(ref)
        if stored is None:
            raise CorruptRecord(f"{ref} is missing: a task refers to it, but somebody deleted it")
        return wire.decode(object, stored.body, ref)


def _without_data(value: Any) -> Any:
    """Return what the task keeps of a value that is stored apart: of an encrypted one, that it is."""
    sealed = parse_sealed(value)
    return None if sealed is None else format_sealed(sealed.key_id, b"")
