"""What a job reads beside the input that starts it, and who must have made that before a rebuild may read it.

A version that is staged or ready builds its data beside the version that serves. A task of it reads an input with
``trigger: false`` as it is when the task is claimed, and nothing starts the task again when more of that input is
made. So the tasks of such a job wait until everything is made that the input is made from, within the same DAG.

What other DAGs make is never waited for: it is what serves there now, and it does not depend on this version. So the
jobs that wait for each other are those of one file, which has no circles, and no two of them wait for each other.

A job with several inputs that start it (``join: any``) reads the others beside as well, as a whole where they do not
have its partition. Each event starts a task of its own, so mostly the last one has read everything; where the inputs
have different partitions it has not. Its tasks wait for nobody, but what they made is compared with these inputs, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qo.core.pipeline.dag import Join
from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A job that only a staged or ready version has, and that reads something beside which the same DAG makes."""

    job: LiveJob
    # Whose work must be done before a task of the job is released, each after those that it reads itself.
    waits_for: tuple[LiveJob, ...]
    compared: tuple[PlannedInput, ...]  # The inputs with which is compared what the job has made.
    makers: tuple[LiveJob, ...]  # Whose work must be done before that is compared.


def find_rebuilds(topology: Topology) -> dict[str, Rebuild]:
    """By edition, each after those that it waits for. Nothing of what serves is among them."""
    makers = {made.generation_id: job for job in topology.jobs.values() for made in job.outputs}
    found: dict[str, Rebuild] = {}
    for job in _in_order(topology, topology.jobs.values()):
        if job.status is VersionStatus.ACTIVE or not job.outputs or job.job.is_source:
            continue
        beside = _read_beside(job)
        compared = beside + _started_by_another(job)
        if compared:
            found[job.edition_id] = Rebuild(
                job,
                _in_order(topology, _upstream(beside, makers)),
                compared,
                _in_order(topology, _upstream(compared, makers)),
            )
    return found


def _read_beside(job: LiveJob) -> tuple[PlannedInput, ...]:
    return tuple(each for each in job.inputs if not each.trigger and each.generation_id is not None)


def _started_by_another(job: LiveJob) -> tuple[PlannedInput, ...]:
    """The inputs that start the job, where there are several and each of them does so by itself."""
    starting = [each for each in job.inputs if each.trigger]
    if len(starting) < 2 or job.job.join is Join.ALL:
        return ()
    return tuple(each for each in starting if each.generation_id is not None)


def _upstream(inputs: Iterable[PlannedInput], makers: Mapping[str, LiveJob]) -> list[LiveJob]:
    """All jobs of the DAG that these inputs are made by, and that those read in turn, and so on."""
    found: dict[str, LiveJob] = {}
    ahead = list(inputs)
    while ahead:
        job = makers.get(ahead.pop().generation_id or "")
        if job is not None and job.edition_id not in found:
            found[job.edition_id] = job
            ahead += job.inputs
    return list(found.values())


def _in_order(topology: Topology, jobs: Iterable[LiveJob]) -> tuple[LiveJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (topology.depth[job.edition_id], job.name, job.version_number)))
