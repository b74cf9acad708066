"""What holds of backpressure and gates in every pipeline, whichever queues are tripped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.gates import InFlight, Waiting, open_gates
from qo.core.pipeline.pressure import Graph, Measure, Target, TargetKind, Thresholds, paused_by, trip_reason
from qo.core.pipeline.topology import Topology
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast

QUEUES = ("spark", "python", "lambda", "dispatcher")


@st.composite
def topologies(draw: st.DrawFn, *, cycles: bool = False, modes: bool = False) -> Topology:
    """Jobs that read earlier ones; with ``cycles``, also later ones and themselves, as DAGs together may."""
    count = draw(st.integers(1, 8))
    jobs = []
    for number in range(count):
        before = [f"j{other}" for other in range(count if cycles else number)]
        reads = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        most = draw(st.none() | st.integers(1, 4))
        operator = draw(st.sampled_from(["sql", "compact"]))
        mode = draw(st.sampled_from([None, "hold", "ignore"])) if modes else None
        queue = draw(st.sampled_from(QUEUES))
        jobs.append(job(f"j{number}", queue, *reads, most=most, operator=operator, mode=mode))
    return topology_of(*jobs)


anything = topologies() | topologies(cycles=True)
tripped = st.sets(st.sampled_from(QUEUES))


def paused(topology: Topology, queues: set[str]) -> set[str]:
    return set(paused_by(topology, as_targets(queues)))


def as_targets(queues: set[str]) -> dict[Target, str]:
    return {Target(TargetKind.QUEUE, queue): "full" for queue in queues}


@given(anything, tripped, tripped)
def test_the_pause_of_several_queues_is_that_of_each_taken_together(topology, first, second) -> None:
    assert paused(topology, first | second) == paused(topology, first) | paused(topology, second)


@given(anything, st.permutations(QUEUES), tripped)
def test_the_order_in_which_queues_trip_does_not_matter(topology, order, chosen) -> None:
    full = {Target(TargetKind.QUEUE, queue): f"{queue} is full" for queue in QUEUES if queue in chosen}
    shuffled = {each: full[each] for queue in order if (each := Target(TargetKind.QUEUE, queue)) in full}
    assert paused_by(topology, full) == paused_by(topology, shuffled)


@given(anything, st.sampled_from(QUEUES))
def test_a_tripped_queue_always_leaves_one_of_its_own_jobs_free(topology, queue) -> None:
    on_it = {edition for edition, live in topology.jobs.items() if live.queue == queue}
    assert not on_it or on_it - paused(topology, {queue})


@given(anything, tripped)
def test_whatever_is_tripped_some_job_on_a_tripped_queue_goes_on(topology, chosen) -> None:
    on_them = {edition for edition, live in topology.jobs.items() if live.queue in chosen}
    assert not on_them or on_them - paused(topology, chosen)


@given(topologies(), tripped)
def test_a_job_is_paused_exactly_while_a_tripped_queue_lies_downstream(topology, chosen) -> None:
    graph = Graph(topology)
    behind = {
        edition
        for edition in topology.jobs
        if any(topology.jobs[later].queue in chosen for later in graph.downstream(edition))
    }
    assert paused(topology, chosen) == behind


@given(topologies(cycles=True, modes=True), st.data())
def test_whatever_queues_and_jobs_are_tripped_all_of_them_clear_and_everything_goes_on(topology, data) -> None:
    """Run the jobs that are not held, and let each target clear when its jobs have run: nothing stays held."""
    jobs = sorted(topology.jobs)
    full = as_targets(data.draw(tripped)) | {
        Target(TargetKind.JOB, each): "full" for each in data.draw(st.sets(st.sampled_from(jobs)))
    }
    graph = Graph(topology)
    while full:
        free = topology.jobs.keys() - paused_by(topology, full).keys()
        # A queue drains by itself, as its wake-ups were sent already; the tasks of a job must be released first.
        clear = {
            each for each in full if each.kind is TargetKind.QUEUE or not graph.members(each) or each.id in free
        }
        assert clear, "a job that must run to clear the pressure is held for ever"
        jobs_first = {each for each in clear if each.kind is TargetKind.JOB} or clear
        gone = data.draw(st.sampled_from(sorted(jobs_first)))
        del full[gone]
    assert paused_by(topology, full) == {}


@given(topologies(cycles=True, modes=True), st.data())
def test_tripped_jobs_alone_always_leave_one_of_them_free(topology, data) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(topology.jobs)), min_size=1))
    held = paused_by(topology, {Target(TargetKind.JOB, each): "full" for each in chosen})
    assert chosen - held.keys()
    assert not {edition for edition in held if topology.jobs[edition].job.backpressure_mode == "ignore"}


@given(
    st.lists(st.builds(Measure, st.integers(0, 30), st.floats(0, 200)), max_size=20),
    st.integers(1, 20),
    st.floats(1, 100),
    st.floats(0, 1),
)
def test_tripping_and_clearing_never_flutter_between_the_two_thresholds(seen, depth, age_s, ratio) -> None:
    limits = Thresholds(depth, age_s, ratio)
    was: str | None = None
    for measure in seen:
        now = trip_reason(measure, limits, was)
        over = measure.depth > depth or measure.oldest_s > age_s
        calm = measure.depth <= ratio * depth and measure.oldest_s <= ratio * age_s
        if over:
            assert now is not None
        elif calm:
            assert now is None
        else:
            assert now == was
        assert trip_reason(measure, limits, now) == now, "measured again, it says the same"
        was = now


@given(
    anything,
    st.dictionaries(st.sampled_from([f"j{n}" for n in range(8)]), st.integers(0, 30), max_size=8),
    st.dictionaries(st.sampled_from([f"j{n}" for n in range(8)]), st.integers(0, 5), max_size=8),
    tripped,
    st.integers(0, 40),
    st.dictionaries(st.sampled_from(["sql", "compact"]), st.integers(1, 6)),
)
def test_gates_keep_every_limit_and_give_a_reason_for_every_hold(
    topology, due, under_way, chosen, room, limits
) -> None:
    held = paused_by(topology, as_targets(chosen))
    operators = {"sql": 0, "compact": 0}
    for edition, live in topology.jobs.items():
        operators[live.job.operator] += under_way.get(edition, 0)
    waiting = [Waiting(edition, count) for edition, count in due.items()]
    grants = open_gates(topology, waiting, InFlight(under_way, operators), operators=limits, held=held, room=room)
    assert sum(grants.release.values()) <= room
    for edition, count in grants.release.items():
        live = topology.jobs[edition]
        assert 0 < count <= due[edition]
        assert edition not in held
        if live.job.scaling.max_concurrency is not None:
            assert under_way.get(edition, 0) + count <= live.job.scaling.max_concurrency
        operators[live.job.operator] += count
    for operator, most in limits.items():
        begun = sum(n for e, n in grants.release.items() if topology.jobs[e].job.operator == operator)
        assert begun == 0 or operators[operator] <= most
    if sum(grants.release.values()) < room:
        for edition, count in due.items():
            if count > grants.release.get(edition, 0):
                assert grants.holds[edition], "what is left behind though there was room has a reason"
