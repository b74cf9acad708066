"""What tasks took, by periods."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.effort import PERIODS_MAX, TaskEffort, period_length, quantile, split_periods

pytestmark = pytest.mark.fast

efforts = st.lists(
    st.builds(
        TaskEffort,
        ended_at=st.floats(0, 4e9),
        has_failed=st.booleans(),
        attempts=st.integers(0, 5),
        ran_s=st.floats(0, 1e6),
        waited_s=st.floats(0, 1e6),
    ),
    max_size=20,
)


@given(efforts)
def test_every_task_is_in_its_period_and_periods_have_no_gaps(tasks: list[TaskEffort]) -> None:
    length, periods = split_periods(tasks)
    assert sum(len(each.tasks) for each in periods) == len(tasks)
    assert len(periods) <= PERIODS_MAX + 1
    for before, after in pairwise(periods):
        assert after.begin - before.begin == length
    for period in periods:
        assert period.begin % length == 0
        assert all(period.begin <= each.ended_at < period.begin + length for each in period.tasks)
    assert sum(each.worker_s for each in periods) == pytest.approx(sum(each.ran_s for each in tasks))


def test_a_period_has_a_usual_length() -> None:
    hour, day = 3_600, 86_400
    assert [period_length(0, span) for span in (0, hour, 10 * hour, 2 * day, 60 * day)] == [60, 60, 900, hour, day]


def test_half_ran_within_the_median_and_failures_do_not_count() -> None:
    tasks = [
        TaskEffort(5, has_failed, 1, ran_s, 1) for has_failed, ran_s in ((False, 10), (False, 30), (True, 99))
    ]
    (_, [period]) = split_periods(tasks)
    assert (period.ran_s(0.5), period.failed, period.worker_s, period.attempts) == (30, 1, 139, 3)
    assert quantile([], 0.5) is None
