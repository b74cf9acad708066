"""How far a version has come with rebuilding its data, and what its jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from qo.api.contract.dag import JobWait, RebuildAnswer
from qo.core.pipeline.rebuilds import Rebuild
from qo.core.pipeline.topology import Topology, VersionStatus
from qo.core.task import Status
from qo.core.words import plural
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog, failures
from qo.dispatcher.versions import records, remaining, side_inputs
from qo.dispatcher.versions.side_inputs import Behind, Lack

NAMED_MAX = 3  # Jobs that are named as causes of a wait.


def rebuild(tx: Tx, dag: str, number: int | None = None) -> RebuildAnswer:
    """Return the progress of the jobs that a version rebuilds: those that the active version does not have.

    For the active version, those that its predecessor did not have. Without a number, for the newest live version.
    Raises NotFound.
    """
    version = records.find(tx, dag, number)
    serving = records.active(tx, dag)
    against = serving["id"] if serving is not None else None
    if version["status"] == VersionStatus.ACTIVE:
        against = version["replaced_version_id"]
    unchanged = backlog.editions(tx, against) if against is not None else frozenset[str]()
    jobs = [job for job in records.stored_plan(tx, version).jobs if job.edition_id not in unchanged]
    building = [job for job in jobs if job.outputs and not job.job.is_source]
    effects = {job.edition_id for job in jobs if not job.outputs}
    counts = failures.counts(tx, {job.edition_id for job in building})
    tasks, waiting = _sum_by_status(counts), _sum_by_status(backlog.counts(tx, effects))
    remaining_by_edition = remaining.count_remaining(tx, building)
    remaining_tasks = sum(remaining_by_edition.values())
    busy = {edition for edition, n in remaining_by_edition.items() if n} | {
        edition for edition in counts if _open(counts[edition])
    }
    waiting_jobs = _waiting_jobs(tx, version["id"], busy)
    held = {rebuild.job.edition_id for rebuild in waiting_jobs}
    stuck = bool(tasks.get(Status.FAILED)) and not tasks.get(Status.RUNNING) and _is_stuck(tx, waiting_jobs, busy)
    open_ = remaining_tasks + tasks.get(Status.PENDING, 0) + tasks.get(Status.RUNNING, 0)
    return RebuildAnswer(
        dag=dag,
        version=version["number"],
        status=version["status"],
        jobs=sorted(job.job.name for job in jobs),
        tasks=tasks,
        remaining=remaining_tasks,
        waiting=waiting.get(Status.PENDING, 0),
        waits=[JobWait(job=each.job.job.name, reason=explain(tx, each)) for each in waiting_jobs],
        blocked=sum(_open(counts.get(edition, {})) for edition in held) if stuck else 0,
        stuck=stuck,
        caught_up=open_ == 0 and not waiting_jobs,
    )


def _sum_by_status(counted: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for by_status in counted.values():
        for status, n in by_status.items():
            summed[status] = summed.get(status, 0) + n
    return summed


def _open(by_status: Mapping[str, int]) -> int:
    return by_status.get(Status.PENDING, 0) + by_status.get(Status.RUNNING, 0)


def _waiting_jobs(tx: Tx, version_id: str, busy: Collection[str]) -> list[Rebuild]:
    """Return the jobs of a staged or ready version that wait for their side inputs.

    ``busy``: editions that are not done. The others have been built from all there was, and treat new input as active
    jobs do.
    """
    live = topology.load(tx)
    return [
        rebuild
        for edition, rebuild in side_inputs.rebuilds(tx, live).items()
        if rebuild.job.version_id == version_id
        and (
            not side_inputs.is_compared(tx, edition)
            or (edition in busy and side_inputs.is_held(tx, live, rebuild))
        )
    ]


def _is_stuck(tx: Tx, waiting: Sequence[Rebuild], busy: Collection[str]) -> bool:
    """Tell whether only waiting jobs have work left, and nothing that they wait for is in progress."""
    held = {rebuild.job.edition_id for rebuild in waiting}
    lacks = [each for rebuild in waiting for each in _behind(tx, rebuild) if each.job.edition_id not in held]
    return held.issuperset(busy) and bool(lacks) and {each.lack for each in lacks} == {Lack.SUCCESS}


def why_held(tx: Tx, live: Topology, edition: str) -> str | None:
    """Return why tasks of the edition wait for side inputs now; None if they do not."""
    rebuild = side_inputs.rebuilds(tx, live).get(edition)
    if rebuild is None or not side_inputs.is_held(tx, live, rebuild):
        return None
    return explain(tx, rebuild)


def _behind(tx: Tx, rebuild: Rebuild) -> list[Behind]:
    others = rebuild.makers if not side_inputs.is_compared(tx, rebuild.job.edition_id) else rebuild.waits_for
    return list(side_inputs.behind(tx, topology.load(tx), others))


def explain(tx: Tx, rebuild: Rebuild) -> str:
    """Describe for people, with numbers, what a job waits for."""
    causes = [_describe(tx, each) for each in _behind(tx, rebuild)]
    if not causes:
        counts = remaining.count_remaining(tx, rebuild.makers)
        causes = [
            _tasks_left(job.job.name, counts[job.edition_id]) for job in rebuild.makers if counts[job.edition_id]
        ]
    if not causes:
        return "its earlier output is being compared with its side inputs"
    texts = causes[:NAMED_MAX] + ([f"and {len(causes) - NAMED_MAX} more"] if len(causes) > NAMED_MAX else [])
    return f"waits for side inputs: {', '.join(texts)}"


def _describe(tx: Tx, each: Behind) -> str:
    name, dag = each.job.job.name, each.job.dag
    counts = failures.counts(tx, {each.job.edition_id}).get(each.job.edition_id, {})
    match each.lack:
        case Lack.TASKS:
            return _tasks_left(name, _open(counts) + sum(remaining.count_remaining(tx, [each.job]).values()))
        case Lack.SUCCESS:
            failed = plural(counts.get(Status.FAILED, 0), f"task of {name} failed", f"tasks of {name} failed")
            return (
                f"{failed} (replay what qo run list {dag} --status failed shows, or take the version as it is with "
                f"qo dag ready {dag} {each.job.version_number} --force)"
            )
        case Lack.EVENTS:
            return f"events that {name} reads are not routed yet"
        case Lack.COMPARISON:
            return f"{name} is being compared with its side inputs"


def _tasks_left(name: str, n: int) -> str:
    return f"{name} has {plural(n, 'task')} left"
