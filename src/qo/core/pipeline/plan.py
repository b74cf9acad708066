"""The plan of a DAG: the identity of its jobs, of what they compute, and of the datasets they make.

    logical job   a job by DAG and name. Stays the same however often the DAG is deployed.
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
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from qo.core.pipeline.dag import Dag, Input, Job, Strategy, to_json
from qo.core.pipeline.part_maps import NAMING_PARTITIONS, PartMap, map_inputs
from qo.core.pipeline.partitions import Partitions

_SPACE = uuid.UUID("0d7c8bb0-52f0-5a3c-8d0a-7d6b4c1fd7a5")  # The namespace of all ids derived here.

# Fields that change how a job runs, but not what it makes.
_OPERATIONAL = frozenset(
    {
        "name",
        "queue",
        "group",
        "scaling",
        "max_queue_depth",
        "max_queue_age",
        "backpressure_mode",
        "secrets",
        "idle_timeout",
        "timeout_seconds",
        "heartbeat_timeout_seconds",
        "max_attempts",
        "bootstrap",
        "cursor_column",
        "drift",
        "expectations",
        "partitions",
        "complete",
        "deadline",
    }
)
_OPERATIONAL_CONFIG = {  # By operator.
    "ingest": frozenset({"missing"}),
    "kafka": frozenset(
        {
            "servers",
            "malformed",
            "expired",
            "rows_per_batch",
            "trigger_seconds",
            "user",
            "password_secret",
            "mechanism",
            "options",
            "secret_options",
        }
    ),
}
_OPERATIONAL_SOURCE = frozenset({"schedule", "timezone", "offset", "webhook_path", "secret", "poll_seconds"})
_OPERATIONAL_INPUT = frozenset({"refresh"})


def derive_id(*parts: str | int) -> str:
    """Return the id that is determined by these parts alone."""
    return str(uuid.uuid5(_SPACE, "\x1f".join(map(str, parts))))


def logical_job_id(dag: str, job: str) -> str:
    return derive_id("job", dag, job)


def dataset_id(dag: str, job: str, output: int) -> str:
    return derive_id("dataset", dag, job, output)


def content_hash(dag: Dag) -> str:
    """Return the hash that identifies the version of a resolved DAG."""
    return hashlib.sha256(to_json(dag)).hexdigest()


def config_hash(job: Job) -> str:
    """Return the hash of everything in the job that decides its output."""
    fields = {key: value for key, value in msgspec.to_builtins(job).items() if key not in _OPERATIONAL}
    if "config" in fields and job.operator in _OPERATIONAL_CONFIG:
        ignored = _OPERATIONAL_CONFIG[job.operator]
        fields["config"] = {k: v for k, v in fields["config"].items() if k not in ignored}
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
    generation_id: str | None  # None: of another DAG, whichever is current there.
    trigger: bool
    where: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    index: int
    dataset_id: str
    generation_id: str


@dataclass(frozen=True, slots=True)
class PlannedJob:
    job: Job  # With the partitions that it has from its inputs.
    logical_id: str
    edition_id: str
    config_hash: str
    inputs: tuple[PlannedInput, ...]
    outputs: tuple[PlannedOutput, ...]
    maps: Mapping[int, PartMap] = field(default_factory=dict[int, PartMap])  # Of inputs, by position.


@dataclass(frozen=True, slots=True)
class Plan:
    """A resolved DAG with all its ids. Each job comes after those that it reads."""

    dag: Dag
    content_hash: str
    jobs: tuple[PlannedJob, ...]
    published: Mapping[str, str]  # Dataset id by published name.

    def job(self, name: str) -> PlannedJob:
        return next(each for each in self.jobs if each.job.name == name)


def plan(dag: Dag, datasets: Mapping[str, str] | None = None) -> Plan:
    """Plan a resolved, validated DAG. ``datasets``: ids of other DAGs' published datasets by name.

    Raises KeyError for a reference to an unknown dataset, which validation reports with more detail.
    """
    published = {
        name: dataset_id(dag.name, publish.from_.job or "", publish.from_.output)
        for name, publish in dag.publish.items()
    }
    planned: dict[str, PlannedJob] = {}
    version, partitions = content_hash(dag), resolve_partitions(dag)
    for job in in_order(dag):
        with_partitions = replace(job, partitions=partitions[job.name])
        planned[job.name] = _plan_job(dag, version, with_partitions, planned, datasets or {})
    return Plan(dag, version, tuple(planned.values()), published)


def resolve_partitions(dag: Dag) -> dict[str, Partitions | None]:
    """Return what the partitions of each job are: as declared, or those of its inputs where it makes one for each of
    theirs. Without jobs on a cycle."""
    resolved: dict[str, Partitions | None] = {}
    for job in in_order(dag):
        per_partition = job.execution_strategy is Strategy.PER_PARTITION and job.operator not in NAMING_PARTITIONS
        kinds = {resolved.get(upstream(dag, each) or "") for each in job.inputs if each.trigger}
        is_declared = job.partitions is not None or not per_partition
        resolved[job.name] = job.partitions if is_declared or len(kinds) != 1 else kinds.pop()
    return resolved


def source_partitions(dag: Dag, job: Job, resolved: Mapping[str, Partitions | None]) -> list[Partitions | None]:
    """Return the partitions of each input of a job; None: not declared, or not in this DAG."""
    return [resolved.get(upstream(dag, each) or "") for each in job.inputs]


def in_order(dag: Dag) -> list[Job]:
    """Return the jobs, each after those it reads, without those on a cycle or downstream of one."""
    waiting = {job.name: job for job in dag.jobs}
    needs = {job.name: {upstream(dag, each) for each in job.inputs} - {None} for job in dag.jobs}
    ready = [name for name in waiting if not needs[name] & waiting.keys()]
    readers: dict[str, list[str]] = {}
    for name, producers in needs.items():
        for producer in producers:
            readers.setdefault(str(producer), []).append(name)
    unmet = {name: len(needs[name] & waiting.keys()) for name in waiting}
    order: list[Job] = []
    while ready:
        name = ready.pop()
        order.append(waiting[name])
        for reader in readers.get(name, ()):
            unmet[reader] -= 1
            if unmet[reader] == 0:
                ready.append(reader)
    return order


def upstream(dag: Dag, each: Input) -> str | None:
    """Return the job of this DAG that an input reads, directly or as a published dataset; None if another DAG's."""
    if each.from_.job is not None:
        return each.from_.job
    published = dag.publish.get(each.from_.dataset or "")
    return published.from_.job if published is not None else None


def outside_datasets(dag: Dag) -> list[str]:
    """Return the published datasets of other DAGs that a DAG reads."""
    reads = [each for job in dag.jobs for each in job.inputs]
    return sorted({each.from_.dataset or "" for each in reads if upstream(dag, each) is None})


def _plan_job(
    dag: Dag, version: str, job: Job, planned: Mapping[str, PlannedJob], datasets: Mapping[str, str]
) -> PlannedJob:
    inputs = tuple(_plan_input(dag, position, each, planned, datasets) for position, each in enumerate(job.inputs))
    logical, config = logical_job_id(dag.name, job.name), config_hash(job)
    read = [each.generation_id or each.dataset_id for each in inputs]
    # Which partitions are made of which others decides what is in them.
    maps = _maps(dag, job, planned)
    made_of = [f"{position}: {each.text}" for position, each in sorted(maps.items())]
    # A job that begins with empty outputs in each version is another edition in each.
    fresh = [version] if job.bootstrap is not None and job.bootstrap.reset_outputs else []
    edition = derive_id("edition", logical, config, *read, *made_of, *fresh)
    ids = [dataset_id(dag.name, job.name, index) for index in range(job.outputs)]
    outputs = tuple(
        PlannedOutput(index, dataset, derive_id("generation", dataset, edition))
        for index, dataset in enumerate(ids)
    )
    return PlannedJob(job, logical, edition, config, inputs, outputs, maps)


def _maps(dag: Dag, job: Job, planned: Mapping[str, PlannedJob]) -> Mapping[int, PartMap]:
    return map_inputs(
        job, source_partitions(dag, job, {name: each.job.partitions for name, each in planned.items()})
    )


def _plan_input(
    dag: Dag, position: int, each: Input, planned: Mapping[str, PlannedJob], datasets: Mapping[str, str]
) -> PlannedInput:
    name = each.name or ""
    producer = upstream(dag, each)
    if producer is None:
        outside = datasets[each.from_.dataset or ""]
        return PlannedInput(position, name, outside, None, each.trigger, each.where)
    index = each.from_.output if each.from_.job is not None else dag.publish[each.from_.dataset or ""].from_.output
    output = planned[producer].outputs[index]
    return PlannedInput(position, name, output.dataset_id, output.generation_id, each.trigger, each.where)
