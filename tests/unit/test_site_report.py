"""What is said at the end of a run."""

from __future__ import annotations

import pytest

from qo.dispatcher.views.pipeline_progress import Failure
from qo.up.report import print_failures, print_nothing_done

pytestmark = pytest.mark.fast


def test_nothing_to_do_is_well_only_where_nothing_has_failed() -> None:
    said: list[str] = []
    for failed in ([], [Failure("4711", "counted", "bad.txt", "ValueError: no")]):
        print_nothing_done(failed, said.append)
        print_failures(failed, said.append)
    well, not_again, *failure, advice = said
    assert well.endswith("everything is up to date")
    assert not_again.endswith("tasks that failed before are not retried automatically")
    assert failure == ["failed: counted bad.txt (task 4711)", "    ValueError: no"]
    assert "qo run replay" in advice
