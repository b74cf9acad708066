"""A partition made of others is made again whenever it must be, and never while somebody will read what is new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.composition import PartNow, Place, Step, Work, decide, has_read
from qo.core.task import Status

places = st.tuples(st.just(0), st.sampled_from(["g1", "g2"]), st.sampled_from("abcd"))
parts = st.dictionaries(
    places,
    st.builds(PartNow, revision=st.integers(1, 9), committed_at=st.integers(1, 9), is_removed=st.booleans()),
)
statuses = st.sampled_from([each for each in Status if each is not Status.ARCHIVED])
works = st.lists(
    st.builds(
        Work,
        task_id=st.uuids().map(str),
        status=statuses,
        has_late_attempt=st.just(False),
        pins=st.dictionaries(places, st.integers(1, 9)),
        updated_at=st.integers(0, 10),
    ),
    max_size=4,
)


def current(there: dict[Place, PartNow]) -> dict[Place, int]:
    return {place: part.revision for place, part in there.items()}


@given(there=parts, done=works, ready=st.booleans())
def test_whoever_has_read_or_will_read_what_is_there_covers_it(
    there: dict[Place, PartNow], done: list[Work], ready: bool
) -> None:
    for status in (Status.RUNNING, Status.COMPLETED, Status.FAILED):
        reader = Work("reader", status, False, current(there) or {(0, "g", "x"): 1}, 0.0)
        assert decide(there, [*done, reader], is_ready=ready).step is Step.COVERED
    waiting = Work("waiting", Status.PENDING, False, {}, 0.0)
    assert decide(there, [*done, waiting], is_ready=ready).by is not None


@given(there=parts, ready=st.booleans())
def test_without_a_task_it_is_made_when_it_is_ready(there: dict[Place, PartNow], ready: bool) -> None:
    assert decide(there, [], is_ready=ready).step is (Step.CREATE if ready else Step.WAIT)


@given(there=parts, done=works, place=places, ready=st.booleans())
def test_a_new_revision_is_made_again_unless_a_task_waits(
    there: dict[Place, PartNow], done: list[Work], place: Place, ready: bool
) -> None:
    made = Work("made", Status.COMPLETED, False, current(there), 0.0)
    decision = decide(there | {place: PartNow(10, 11.0)}, [*done, made], is_ready=ready)
    is_waiting = any(each.status is Status.PENDING for each in done)
    assert decision.step is (Step.COVERED if is_waiting else Step.REBUILD)


@given(there=parts, pins=st.dictionaries(places, st.integers(1, 9)))
def test_a_removed_part_counts_for_those_who_have_read_it(
    there: dict[Place, PartNow], pins: dict[Place, int]
) -> None:
    expected = all(
        pins.get(place, 0) >= part.revision
        for place, part in there.items()
        if not (part.is_removed and place not in pins)
    )
    assert has_read(pins, there) == expected


@given(there=parts, ready=st.booleans())
def test_a_task_that_a_person_cancelled_is_not_replaced_until_there_is_something_new(
    there: dict[Place, PartNow], ready: bool
) -> None:
    cancelled = Work("cancelled", Status.CANCELLED, False, {}, 10.0)
    assert decide(there, [cancelled], is_ready=ready).step is Step.COVERED
    later = there | {(0, "g1", "z"): PartNow(10, 11.0)}
    assert decide(later, [cancelled], is_ready=True).step is Step.REBUILD


@given(there=parts)
def test_an_attempt_that_may_still_end_late_counts_by_what_it_has_read(there: dict[Place, PartNow]) -> None:
    later = {place: PartNow(part.revision + 1, 1.0) for place, part in there.items()}
    late = Work("late", Status.PENDING, True, current(there), 0.0)
    made = Work("made", Status.COMPLETED, False, current(there), 0.0)
    assert decide(later, [late, made], is_ready=True).step is (Step.REBUILD if there else Step.COVERED)
