"""What a DAG means: who its jobs are, what exactly they compute, and into which generations of which datasets.

    logical job   a job by its place: DAG and name. Stays the same however often the DAG is deployed.
    edition       a logical job together with everything that decides its output: its own definition and the
                  generations it reads. Work is done once for an edition.
    dataset       one output of a logical job.
    generation    a dataset as one edition makes it.

All ids follow from content, so an unchanged job keeps its edition and its data through every deploy, an edited one
gets a new edition, and so does everything downstream of it, because the generations it reads are new. Going back
to an older file is going back to its generations.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from qo.core.pipeline.dag import Dag, Input, Job, to_json

_SPACE = uuid.UUID("0d7c8bb0-52f0-5a3c-8d0a-7d6b4c1fd7a5")  # The name space of all ids derived here.

# What changes how a job runs, but not what it makes.
_OPERATIONAL = frozenset(
    {
        "name",
        "scaling",
        "secrets",
        "idle_timeout",
        "timeout_seconds",
        "heartbeat_timeout_seconds",
        "max_attempts",
        "bootstrap",
        "cursor_column",
        "drift",
        "expectations",
    }
)
_OPERATIONAL_CONFIG = {"ingest": frozenset({"missing"})}  # By operator.
_OPERATIONAL_SOURCE = frozenset({"schedule", "timezone", "webhook_path", "secret", "poll_seconds"})
_OPERATIONAL_INPUT = frozenset({"refresh"})


def derive_id(*parts: str | int) -> str:
    """An id that follows from the parts and from nothing else."""
    return str(uuid.uuid5(_SPACE, "\x1f".join(map(str, parts))))


def logical_job_id(dag: str, job: str) -> str:
    return derive_id("job", dag, job)


def dataset_id(dag: str, job: str, output: int) -> str:
    return derive_id("dataset", dag, job, output)


def content_hash(dag: Dag) -> str:
    """Of a resolved DAG: what its version is known by."""
    return hashlib.sha256(to_json(dag)).hexdigest()


def config_hash(job: Job) -> str:
    """Of everything in the job that decides its output."""
    fields = {key: value for key, value in msgspec.to_builtins(job).items() if key not in _OPERATIONAL}
    if "config" in fields and job.operator in _OPERATIONAL_CONFIG:
        left_out = _OPERATIONAL_CONFIG[job.operator]
        fields["config"] = {k: v for k, v in fields["config"].items() if k not in left_out}
    if "source" in fields:
        fields["source"] = {k: v for k, v in fields["source"].items() if k not in _OPERATIONAL_SOURCE}
    if "inputs" in fields:
        fields["inputs"] = [
            {k: v for k, v in each.items() if k not in _OPERATIONAL_INPUT} for each in fields["inputs"]
        ]
    return hashlib.sha256(to_json(fields)).hexdigest()


@dataclass(frozen=True, slots=True)
class PlannedInput:
    position: int
    name: str
    dataset_id: str
    generation_id: str | None  # None: of another DAG, whatever is current there.
    trigger: bool
    where: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    index: int
    dataset_id: str
    generation_id: str


@dataclass(frozen=True, slots=True)
class PlannedJob:
    job: Job
    logical_id: str
    edition_id: str
    config_hash: str
    inputs: tuple[PlannedInput, ...]
    outputs: tuple[PlannedOutput, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A resolved DAG with every id worked out. Jobs stand in an order in which each follows those it reads."""

    dag: Dag
    content_hash: str
    jobs: tuple[PlannedJob, ...]
    published: Mapping[str, str]  # Dataset id by published name.

    def job(self, name: str) -> PlannedJob:
        return next(each for each in self.jobs if each.job.name == name)


def plan(dag: Dag, datasets: Mapping[str, str] | None = None) -> Plan:
    """Work out a resolved, validated DAG. ``datasets``: ids of other DAGs' published datasets by name.

    Raises KeyError for a reference to a dataset that is in neither; validation says it better, beforehand.
    """
    published = {
        name: dataset_id(dag.name, publish.from_.job or "", publish.from_.output)
        for name, publish in dag.publish.items()
    }
    done: dict[str, PlannedJob] = {}
    version = content_hash(dag)
    for job in in_order(dag):
        done[job.name] = _planned(dag, version, job, done, datasets or {})
    return Plan(dag, version, tuple(done.values()), published)


def in_order(dag: Dag) -> list[Job]:
    """The jobs, each after those it reads. Jobs on a cycle are left out: ask ``cycle`` for one."""
    waiting = {job.name: job for job in dag.jobs}
    needs = {job.name: {upstream(dag, each) for each in job.inputs} - {None} for job in dag.jobs}
    ready = [name for name in waiting if not needs[name] & waiting.keys()]
    readers: dict[str, list[str]] = {}
    for name, wanted in needs.items():
        for one in wanted:
            readers.setdefault(str(one), []).append(name)
    left = {name: len(needs[name] & waiting.keys()) for name in waiting}
    order: list[Job] = []
    while ready:
        name = ready.pop()
        order.append(waiting[name])
        for reader in readers.get(name, ()):
            left[reader] -= 1
            if left[reader] == 0:
                ready.append(reader)
    return order


def upstream(dag: Dag, each: Input) -> str | None:
    """The job of this DAG that an input reads, also by the name under which it is published; None: another DAG's."""
    if each.from_.job is not None:
        return each.from_.job
    published = dag.publish.get(each.from_.dataset or "")
    return published.from_.job if published is not None else None


def _planned(
    dag: Dag, version: str, job: Job, done: Mapping[str, PlannedJob], datasets: Mapping[str, str]
) -> PlannedJob:
    inputs = tuple(_input(dag, position, each, done, datasets) for position, each in enumerate(job.inputs))
    logical, config = logical_job_id(dag.name, job.name), config_hash(job)
    read = [each.generation_id or each.dataset_id for each in inputs]
    # Who wants to begin with nothing in each version is another edition in each.
    fresh = [version] if job.bootstrap is not None and job.bootstrap.reset_outputs else []
    edition = derive_id("edition", logical, config, *read, *fresh)
    ids = [dataset_id(dag.name, job.name, index) for index in range(job.outputs)]
    outputs = tuple(
        PlannedOutput(index, made, derive_id("generation", made, edition)) for index, made in enumerate(ids)
    )
    return PlannedJob(job, logical, edition, config, inputs, outputs)


def _input(
    dag: Dag, position: int, each: Input, done: Mapping[str, PlannedJob], datasets: Mapping[str, str]
) -> PlannedInput:
    name = each.name or ""
    producer = upstream(dag, each)
    if producer is None:
        outside = datasets[each.from_.dataset or ""]
        return PlannedInput(position, name, outside, None, each.trigger, each.where)
    index = each.from_.output if each.from_.job is not None else dag.publish[each.from_.dataset or ""].from_.output
    made = done[producer].outputs[index]
    return PlannedInput(position, name, made.dataset_id, made.generation_id, each.trigger, each.where)
