"""What messages have in common."""

from __future__ import annotations

import pytest

from qo.core.words import plural


@pytest.mark.parametrize(
    ("n", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12345, "12,345 files"), (-1, "-1 files")]
)
def test_one_is_one_and_all_others_are_many(n: int, said: str) -> None:
    assert plural(n, "file") == said


def test_a_verb_goes_with_its_noun() -> None:
    assert [plural(n, "event waits", "events wait") for n in (1, 2)] == ["1 event waits", "2 events wait"]
