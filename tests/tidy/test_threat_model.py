"""The threat model names the tests that show what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/threat-model.md").read_text()


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = "\n".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)", written, re.MULTILINE))
    assert len(named) > 40
    assert named - there == set()


def test_every_threat_says_what_stops_it() -> None:
    rows = re.findall(r"^\| (?!threat|asset|actor|-)(.+) \|$", PAGE.partition("## Threats")[2], re.MULTILINE)
    assert len(rows) > 25
    assert not [row for row in rows if len(row.split(" | ")) < 2 or not row.split(" | ")[1].strip()]
