"""Editing any job changes exactly what depends on it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qo.core.pipeline.dag import Dag, from_json, resolve_defaults, to_json
from qo.core.pipeline.diff import diff
from qo.core.pipeline.plan import Plan, plan
from support.dispatcher.pipelines import dag, edited, job, source

pytestmark = pytest.mark.fast

OPERATIONAL: list[dict[str, Any]] = [
    {"group": "intake"},
    {"timeout_seconds": 77},
    {"heartbeat_timeout_seconds": 7},
    {"max_attempts": 8},
    {"scaling": {"max_concurrency": 3}},
    {"secrets": ["token"]},
    {"idle_timeout": "5m"},
]
REAL: list[dict[str, Any]] = [
    {"config": {"edited": True}},
    {"operator": "edited:run"},
    {"runtime": "spark"},
    {"update_strategy": "append", "unique_key": ["id"]},
]


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    """A source and up to nine jobs, each of which reads some that come before it."""
    jobs = [source("job0", outputs=2)]
    for index in range(1, draw(st.integers(1, 9))):
        read = draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=3))
        reads = [{"job": f"job{one}", "trigger": draw(st.booleans())} for one in sorted(read)]
        jobs.append(job(f"job{index}", reads=reads, config={"n": draw(st.integers(0, 3))}))
    return dag("drawn", *jobs)


def downstream(wanted: Dag, name: str) -> set[str]:
    found = {name}
    while True:
        more = {each.name for each in wanted.jobs if any(read.from_.job in found for read in each.inputs)}
        if more <= found:
            return found
        found |= more


def editions(planned: Plan) -> dict[str, str]:
    return {each.job.name: each.edition_id for each in planned.jobs}


def generations(planned: Plan) -> dict[str, list[str]]:
    return {each.job.name: [made.generation_id for made in each.outputs] for each in planned.jobs}


@given(dags(), st.data())
def test_editing_a_job_changes_its_edition_and_those_of_all_its_readers_and_no_other(
    before: Dag, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([each.name for each in before.jobs]))
    after = edited(before, name, **data.draw(st.sampled_from(REAL)))
    old, new = plan(before), plan(after)
    expected = downstream(before, name)
    assert {each for each, edition in editions(new).items() if editions(old)[each] != edition} == expected
    assert {each for each, made in generations(new).items() if generations(old)[each] != made} == expected
    found = diff(old, new)
    assert {each.job for each in found.rebuilt} == expected
    assert [each.job for each in found.edited] == [name]
    assert set(found.carried_over) == {each.name for each in before.jobs} - expected
    assert old.content_hash != new.content_hash


@given(dags(), st.data())
def test_how_a_job_is_run_changes_no_edition_but_is_another_version(before: Dag, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([each.name for each in before.jobs]))
    after = edited(before, name, **data.draw(st.sampled_from(OPERATIONAL)))
    assert editions(plan(after)) == editions(plan(before))
    assert plan(after).content_hash != plan(before).content_hash
    found = diff(plan(before), plan(after))
    assert found.rebuilt == ()
    assert [each.job for each in found.operational] == [name]


@given(dags(), st.data())
def test_what_a_change_of_an_input_refreshes_changes_no_edition(before: Dag, data: st.DataObject) -> None:
    readers = [each for each in before.jobs if any(not read.trigger for read in each.inputs)]
    assume(readers)
    reader = data.draw(st.sampled_from(readers))
    inputs = [
        msgspec.to_builtins(read) | ({} if read.trigger else {"refresh": "on_change"}) for read in reader.inputs
    ]
    after = edited(before, reader.name, inputs=inputs)
    assert editions(plan(after)) == editions(plan(before))
    assert generations(plan(after)) == generations(plan(before))
    assert plan(after).content_hash != plan(before).content_hash
    assert [each.job for each in diff(plan(before), plan(after)).operational] == [reader.name]


@given(dags(), st.integers())
def test_the_order_of_jobs_means_nothing(before: Dag, seed: int) -> None:
    jobs = list(before.jobs)
    random.Random(seed).shuffle(jobs)
    assert plan(resolve_defaults(dag("drawn", *jobs))) == plan(before)


@given(dags())
def test_each_job_stands_after_those_it_reads(before: Dag) -> None:
    seen: set[str] = set()
    for each in plan(before).jobs:
        assert {read.from_.job for read in each.job.inputs} <= seen
        seen.add(each.job.name)
    assert len(seen) == len(before.jobs)


@given(dags(), dags())
def test_every_job_of_two_files_is_accounted_for_once(old: Dag, new: Dag) -> None:
    found = diff(plan(old), plan(new))
    rebuilt = [each.job for each in found.rebuilt]
    assert sorted([*rebuilt, *found.carried_over]) == sorted(each.name for each in new.jobs)
    assert set(found.added) <= set(rebuilt)
    assert set(found.removed) == {each.name for each in old.jobs} - {each.name for each in new.jobs}
    assert found.empty == (plan(old).content_hash == plan(new).content_hash)


@given(dags())
def test_ids_are_never_shared(before: Dag) -> None:
    planned = plan(before)
    made = [output for each in planned.jobs for output in each.outputs]
    ids = [each.edition_id for each in planned.jobs] + [each.logical_id for each in planned.jobs]
    ids += [each.dataset_id for each in made] + [each.generation_id for each in made]
    assert len(set(ids)) == len(ids)
    assert plan(from_json(to_json(before))) == planned


@given(dags(), st.sampled_from(["day", "text"]))
def test_saying_what_partitions_are_rebuilds_nothing(before: Dag, kind: str) -> None:
    after = edited(before, before.jobs[0].name, partitions={"kind": kind})
    assert editions(plan(after)) == editions(plan(before))
