"""When a worker without work ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.config.origins import load
from qo.core.idleness import LEAST_S, Idleness, longest_idle_s, parse_idle_s
from qo.errors import ConfigError
from qo.worker.idle_watch import idle_limit

pytestmark = pytest.mark.fast

TEXTS = st.sampled_from(["never", "0", "30s", "5m", None])


@pytest.mark.parametrize(("text", "seconds"), [("never", None), ("0", 0.0), ("5m", 300.0), ("1h30m", 5400.0)])
def test_the_forms_of_a_limit(text: str, seconds: float | None) -> None:
    assert parse_idle_s(text) == seconds


def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="'soon' is neither"):
        parse_idle_s("soon")
    with pytest.raises(ConfigError, match=r"worker\.idle_timeout must be never, 0, or a time"):
        load({"worker.idle_timeout": "soon"}, environ={})
    with pytest.raises(ConfigError, match="is for workers of a runtime"):
        idle_limit(load({"worker.idle_timeout": "jobs"}, environ={}))
    assert idle_limit(load({"worker.idle_timeout": "90s"}, environ={}))() == 90.0
    assert idle_limit(load({}, environ={}))() is None


@given(texts=st.lists(TEXTS), otherwise=TEXTS)
def test_the_most_patient_job_decides(texts: list[str | None], otherwise: str | None) -> None:
    limit = longest_idle_s(texts, otherwise)
    single = [longest_idle_s([each], otherwise) for each in texts] or [longest_idle_s([], otherwise)]
    assert limit == (None if None in single else max(each for each in single if each is not None))


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 2), st.booleans()), max_size=30),
    limit_s=st.none() | st.floats(0, 200),
)
def test_a_worker_ends_only_after_it_was_idle_for_the_whole_limit(
    steps: list[tuple[float, int, bool]], limit_s: float | None
) -> None:
    idle, now, claimed, last_busy = Idleness(0.0), 0.0, 0, 0.0
    for passed_s, more, busy in steps:
        now, claimed = now + passed_s, claimed + more
        idle = idle.observe(claimed=claimed, busy=busy, now=now)
        last_busy = now if busy or more else last_busy
        remaining_s = idle.remaining_s(limit_s, now)
        if limit_s is None:
            assert remaining_s == math.inf
        else:
            assert (remaining_s == 0.0) == (now >= last_busy + max(limit_s, LEAST_S))
