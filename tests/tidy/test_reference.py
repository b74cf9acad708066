"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from qo.core.task import RetryPolicy, Status, Task

pytestmark = pytest.mark.fast

PAGE = (Path(__file__).parents[2] / "docs/reference/task-format.md").read_text()


def test_every_field_of_the_task_is_documented_and_no_other():
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Beside it")[0], re.MULTILINE)
    assert documented == [field.encode_name for field in msgspec.structs.fields(Task)]


def test_every_status_and_retry_field_is_documented():
    for name in [*Status, *(field.name for field in msgspec.structs.fields(RetryPolicy))]:
        assert f"`{name}`" in PAGE
