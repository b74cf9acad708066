"""The schema of a new task allows what the queue takes, and no more."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from qo.core.retry import INTERVAL_MAX_MS
from qo.core.task import PRIORITY_MAX
from qo.errors import UsageError
from qo.queue.options import COUNT_MAX, DELAY_S_MAX, TASK_TYPE_LEN_MAX, TEXT_LEN_MAX, check_task
from qo.queue.task_document import OPTION_NAMES, read_document
from qo.queue_api.task_schema import NEW_TASK

pytestmark = pytest.mark.fast

ID = "a3f1c0de-0000-4000-8000-000000000001"
NUMBERS = [-1, 0, 0.0005, 0.5, 1, 2, 1.5, PRIORITY_MAX, PRIORITY_MAX + 1, COUNT_MAX, COUNT_MAX + 1]
LARGE = [INTERVAL_MAX_MS, INTERVAL_MAX_MS + 1, int(DELAY_S_MAX), int(DELAY_S_MAX) + 1, 10**40]
SPANS = ["90", "1h30m", "1h 30m", " 45s ", "2 m s", "1.5h", "1.h", ".5", "h", "1x", "-1s", "1 0 s", "1_0s", "٣s"]
TEXTS = [
    "",
    "x",
    "run",
    "cancel",
    ID,
    "x" * TASK_TYPE_LEN_MAX,
    "x" * TEXT_LEN_MAX,
    "x" * (TEXT_LEN_MAX + 1),
    "a\nb",
    "\x85",
    "ä",
]
VALUES: list[Any] = [
    *NUMBERS,
    *LARGE,
    *SPANS,
    *TEXTS,
    None,
    True,
    [],
    [ID],
    [1],
    [None],
    {},
    "2026-01-01T00:00:00Z",
]
NEEDED = {"key_scope": {"key": "k"}, "unique_for": {"unique": "u"}}
# Validators need not look at formats.
FORMATS = {"at", "expires_at", "depends_on"}


def is_taken(document: dict[str, Any]) -> bool:
    try:
        check_task(read_document(document, "the body"))
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", ["type", *OPTION_NAMES])
def test_the_schema_and_the_queue_agree_on_every_value(name: str) -> None:
    schema = jsonschema.Draft202012Validator(NEW_TASK)
    for value in VALUES:
        document = {"type": "t", **NEEDED.get(name, {}), name: value}
        is_in_a_format = name in FORMATS and isinstance(value, str) and value != ""
        if is_in_a_format or (value == [] and name != "depends_on"):
            continue  # An empty list counts as not given, wherever it stands.
        assert schema.is_valid(document) == is_taken(document), (name, value)


def test_unknown_names_are_refused_by_both() -> None:
    document = {"type": "t", "colour": "red"}
    assert not jsonschema.Draft202012Validator(NEW_TASK).is_valid(document)
    assert not is_taken(document)
