"""The JSON schemas of new tasks and of what becomes of them, with the bounds that the queue checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qo.core.retry import INTERVAL_MAX_MS
from qo.core.task import PRIORITY_MAX, OnDependencyFailure
from qo.core.waits import DEPENDENCIES_MAX
from qo.queue.options import COUNT_MAX, DELAY_S_MAX, TASK_TYPE_LEN_MAX, TEXT_LEN_MAX, TIMEOUT_S_MIN
from qo.queue.task_document import NAMES, OPTION_NAMES
from qo.queue_api.task_reading import TASK

TASKS_MAX = 1_000  # In one request.
REASON_CHARS_MAX = 1_000

_Schema = Mapping[str, Any]
# As qo.core.timespan reads it: a number of seconds, or parts with units; spaces do not count.
_NUMBER = r"[0-9][0-9 ]*(\.[0-9 ]*[0-9])? *"
_SPAN = rf"^\s*({_NUMBER}|({_NUMBER}(m *s|s|m|h|d|w) *)+)\s*$"
_TASK_ID: _Schema = {"type": "string", "format": "uuid", "minLength": 1}
_TYPE: _Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": TASK_TYPE_LEN_MAX,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$",
}
_TEXT: _Schema = {"type": "string", "minLength": 1, "maxLength": TEXT_LEN_MAX}
_INSTANT: _Schema = {"type": "string", "format": "date-time", "minLength": 1}


def _duration(low_s: float) -> _Schema:
    return {
        "anyOf": [
            {"type": "number", "minimum": low_s, "maximum": DELAY_S_MAX},
            {"type": "string", "pattern": _SPAN},
            {"type": "null"},
        ],
        "description": "Seconds, or a text such as 1h30m.",
    }


def _optional(schema: _Schema, description: str = "") -> _Schema:
    """Allow null, which counts as not given."""
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    described = {"description": description} if description else {}
    return {**schema, "type": [schema["type"], "null"], **values, **described}


def _count(low: int, high: int) -> _Schema:
    return _optional({"type": "integer", "minimum": low, "maximum": high})


def _number(low: float, high: float | None = None) -> _Schema:
    return _optional({"type": "number", "minimum": low} | ({} if high is None else {"maximum": high}))


_OPTIONS: Mapping[str, _Schema] = {
    "at": _optional(_INSTANT),
    "delay": _duration(0),
    "expires_at": _optional(_INSTANT),
    "expires_in": _duration(0),
    "key": _optional(_TEXT),
    "key_scope": _optional(_TEXT, "Needs a key."),
    "timeout": _duration(TIMEOUT_S_MIN),
    "retries": _count(0, COUNT_MAX),
    "max_reschedules": _count(0, COUNT_MAX),
    "on_failure": _optional(_TYPE, "The type of a task that is submitted if this one fails."),
    "max_deliveries": _count(1, COUNT_MAX),
    "priority": _count(0, PRIORITY_MAX),
    "depends_on": {
        "anyOf": [{"type": "array", "items": _TASK_ID}, _TASK_ID, {"type": "null"}],
        "description": f"Tasks that must have completed before it starts, {DEPENDENCIES_MAX:,} at most.",
    },
    "on_dependency_failure": _optional({"type": "string", "enum": [str(each) for each in OnDependencyFailure]}),
    "group": _optional(_TEXT, "Tasks of one group run one at a time, in order."),
    "unique": _optional(_TEXT, "Not while a task of this type and key is active."),
    "unique_for": _duration(TIMEOUT_S_MIN),
    "retry_initial_ms": _count(0, INTERVAL_MAX_MS),
    "retry_max_ms": _count(0, INTERVAL_MAX_MS),
    "retry_multiplier": _number(1),
    "retry_jitter": _number(0, 1),
}
NEW_TASK: _Schema = {
    "type": "object",
    "required": ["type"],
    "additionalProperties": False,
    "properties": {
        "type": {**_TYPE, "description": "Which handler runs it."},
        "input": {"description": "Any JSON value."},
        **{name: _OPTIONS[name] for name in OPTION_NAMES},
    },
}
assert set(NEW_TASK["properties"]) == NAMES
NEW: _Schema = {"$ref": "#/components/schemas/NewTask"}
_LIST: _Schema = {"type": "array", "items": NEW, "minItems": 1, "maxItems": TASKS_MAX}
MANY: _Schema = {"anyOf": [{"type": "object", "required": ["tasks"], "properties": {"tasks": _LIST}}, _LIST]}
CANCEL: _Schema = {
    "type": ["object", "null"],
    "additionalProperties": False,
    "properties": {"reason": {"type": ["string", "null"], "maxLength": REASON_CHARS_MAX}},
}
_CREATED: _Schema = {
    "type": "object",
    "required": ["task", "created"],
    "additionalProperties": False,
    "properties": {
        "task": TASK,
        "created": {"type": "boolean", "description": "False: its key named this task before."},
    },
}
_FAILED: _Schema = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["status", "code", "error"],
            "additionalProperties": False,
            "properties": {
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "code": {"type": "string"},
                "error": {"type": "string"},
            },
        }
    },
}
RESULTS: _Schema = {
    "type": "object",
    "required": ["results"],
    "additionalProperties": False,
    "properties": {"results": {"type": "array", "items": {"oneOf": [_CREATED, _FAILED]}}},
}
