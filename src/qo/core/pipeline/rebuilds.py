"""Side inputs of a rebuild: which jobs must have finished before a task may read what they make.

A version that is staged or ready builds its data beside the version that serves. A task of it reads an input with
``trigger: false`` (a side input) as it is when the task is claimed, and nothing starts the task again when more of that
input is made. So the tasks of such a job wait until every job upstream of the side input, within the same DAG, is done.

Other DAGs are never waited for: their data is what serves there now, and does not depend on this version. So only jobs
of one DAG wait for each other. A DAG has no cycles, hence no two jobs wait for each other.

A job with several inputs that trigger it (``join: any``) reads the others as side inputs too, whole where they do not
have its partition. Each event starts a task of its own, so usually the last task has read everything; where the inputs
have different partitions it has not. Its tasks wait for no job, but their outputs are compared with these inputs, too.

A job whose partitions are made of others may make them before all of these are there. In a version that is being built
that would be always: so there its tasks wait for the makers of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qo.core.pipeline.dag import Join
from qo.core.pipeline.part_maps import may_be_incomplete
from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A job that only a staged or ready version has, and that has side inputs made by the same DAG."""

    job: LiveJob
    # The jobs that must be done before a task of the job is released, each after those that it reads itself.
    waits_for: tuple[LiveJob, ...]
    compared: tuple[PlannedInput, ...]  # The inputs that the outputs of the job are compared with.
    makers: tuple[LiveJob, ...]  # The jobs that must be done before the comparison.


def find_rebuilds(topology: Topology) -> dict[str, Rebuild]:
    """Return the rebuilds by edition, each after those that it waits for. Jobs of the version that serves are not among
    them."""
    makers = {output.generation_id: job for job in topology.jobs.values() for output in job.outputs}
    rebuilds: dict[str, Rebuild] = {}
    built = (job for job in topology.jobs.values() if job.status is not VersionStatus.ACTIVE)
    for job in _sort_by_depth(topology, built):
        if not job.outputs or job.job.is_source:
            continue
        side_inputs = _side_inputs(job)
        compared = side_inputs + _competing_triggers(job)
        awaited = side_inputs + _unfinished_parts(job)
        if compared or awaited:
            rebuilds[job.edition_id] = Rebuild(
                job,
                _sort_by_depth(topology, _upstream(awaited, makers)),
                compared,
                _sort_by_depth(topology, _upstream(compared + awaited, makers)),
            )
    return rebuilds


def _side_inputs(job: LiveJob) -> tuple[PlannedInput, ...]:
    return tuple(each for each in job.inputs if not each.trigger and each.generation_id is not None)


def _competing_triggers(job: LiveJob) -> tuple[PlannedInput, ...]:
    """Return the inputs that trigger the job, where there are several and each does so by itself."""
    starting = [each for each in job.inputs if each.trigger]
    if len(starting) < 2 or job.job.join is Join.ALL or job.is_composite:
        return ()
    return tuple(each for each in starting if each.generation_id is not None)


def _unfinished_parts(job: LiveJob) -> tuple[PlannedInput, ...]:
    """Return the inputs whose partitions its own are made of, where it does not wait for all of them by itself."""
    if not may_be_incomplete(job.job):
        return ()
    return tuple(each for each in job.composed if each.generation_id is not None)


def _upstream(inputs: Iterable[PlannedInput], makers: Mapping[str, LiveJob]) -> list[LiveJob]:
    """Return all jobs of the DAG that these inputs depend on, directly or through others."""
    jobs: dict[str, LiveJob] = {}
    ahead = list(inputs)
    while ahead:
        job = makers.get(ahead.pop().generation_id or "")
        if job is not None and job.edition_id not in jobs:
            jobs[job.edition_id] = job
            ahead += job.inputs
    return list(jobs.values())


def _sort_by_depth(topology: Topology, jobs: Iterable[LiveJob]) -> tuple[LiveJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (topology.depth[job.edition_id], job.name, job.version_number)))
