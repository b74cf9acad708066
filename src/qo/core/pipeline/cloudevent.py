"""CloudEvents 1.0, as far as a pipeline needs them: one message becomes one event.

id and source     the idempotency key: a message that is sent again is recognised
data              an object that holds ``cursor`` or ``partition_key`` is the event: its fields ``output``,
                  ``dataset_uuid``, ``dataset_version``, ``cursor``, ``partition_key``, ``start``, ``end`` and
                  ``attributes`` are the event's, everything else in it joins the attributes. Any other data is the
                  attribute ``data``
subject           the partition key, where the data names neither key nor cursor; characters that a key cannot hold
                  are replaced (``core.pipeline.naming``)
the rest          ``id``, ``source``, ``type``, ``subject`` and ``time`` are kept in the attribute ``cloudevent``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from qo.core.pipeline.naming import idempotency_key, partition_key
from qo.errors import UsageError

STRUCTURED = "application/cloudevents+json"
VERSION = "1.0"
_FIELDS = ("output", "dataset_uuid", "dataset_version", "cursor", "partition_key", "start", "end")
_CONTEXT_FIELDS = ("id", "source", "type", "subject", "time")


@dataclass(frozen=True, slots=True)
class Message:
    """An idempotency key, and the fields of each event."""

    key: str
    events: list[dict[str, Any]]


def is_binary(headers: Mapping[str, str]) -> bool:
    """Return whether the context is in headers, and the body is only data. Header names are in lower case."""
    return "ce-specversion" in headers


def from_structured(body: object) -> Message:
    """Read a message whose context and data are in one JSON object. Raises UsageError."""
    if not isinstance(body, dict):
        raise UsageError(
            "a CloudEvent in structured mode is one JSON object; batches are not accepted: send each by itself"
        )
    context = cast("dict[str, Any]", body)
    if "data_base64" in context:
        raise UsageError("data_base64 is not accepted: send the data as JSON in data")
    return _message(context, context.get("data"))


def from_binary(headers: Mapping[str, str], body: bytes) -> Message:
    """Read a message whose context is in ``ce-`` headers (names in lower case) and whose body is JSON data, or empty.

    Raises UsageError.
    """
    context = {name.removeprefix("ce-"): value for name, value in headers.items() if name.startswith("ce-")}
    return _message(context, read_json(body) if body else None)


def read_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from None


def _message(context: Mapping[str, Any], data: object) -> Message:
    for name in ("specversion", "id", "source", "type"):
        value = context.get(name)
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"a CloudEvent needs {name}, a text that is not empty")
    if context["specversion"] != VERSION:
        raise UsageError(f"CloudEvents {context['specversion']} is not supported: send {VERSION}")
    context_fields = {name: context[name] for name in _CONTEXT_FIELDS if context.get(name) is not None}
    event = _event(context.get("subject"), data)
    event["attributes"] = {**event["attributes"], "cloudevent": context_fields}
    return Message(idempotency_key("ce", str(context["source"]), str(context["id"])), [event])


def _event(subject: object, data: object) -> dict[str, Any]:
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if fields.get("cursor") is not None or fields.get("partition_key") is not None:
        attributes: object = fields.get("attributes") or {}
        if not isinstance(attributes, dict):
            raise UsageError("attributes must be an object")
        event = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
        rest = {name: value for name, value in fields.items() if name not in _FIELDS and name != "attributes"}
        return {**event, "attributes": {**rest, **cast("dict[str, Any]", attributes)}}
    if not isinstance(subject, str) or not subject:
        raise UsageError(
            "nothing says what is new: give the CloudEvent a subject, or data with cursor or partition_key"
        )
    return {"partition_key": partition_key(subject), "attributes": {} if data is None else {"data": data}}
