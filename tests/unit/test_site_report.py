"""What is said at the end of a run."""

from __future__ import annotations

import pytest

from qo.dispatcher.views.progress import Failure
from qo.up.report import tell_failures, tell_rest

pytestmark = pytest.mark.fast


def test_nothing_to_do_is_well_only_where_nothing_has_failed() -> None:
    said: list[str] = []
    for failed in ([], [Failure("4711", "counted", "bad.txt", "ValueError: no")]):
        tell_rest(failed, said.append)
        tell_failures(failed, said.append)
    well, not_again, *failure, advice = said
    assert well.endswith("everything is as it should be")
    assert not_again.endswith("what has failed before is not tried again by itself")
    assert failure == ["failed: counted bad.txt (task 4711)", "    ValueError: no"]
    assert "qo run replay" in advice
