"""Emissions: the events of sources, whether emitted by hand, on a schedule, by a webhook or for a new file.

An emission is stored as a task that is created completed. The task shows who emitted what and when. It is the producer
of the events, and it commits the partitions that they announce, so that the reconciler finds work that was missed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa

from qo.api.contract.source import EVENTS_MAX, KEY_MAX, Coalesced, EmitAnswer
from qo.api.contract.task import SIZE_MAX, EventBody, OutputBody
from qo.core.pipeline.dag import SourceKind, to_json
from qo.core.pipeline.event import Event, event_id, validate
from qo.core.pipeline.plan import logical_job_id
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.attempts.running import own_events
from qo.dispatcher.commits import commits
from qo.dispatcher.commits.outputs import Output, Write, live_outputs
from qo.dispatcher.events import event_log as kept_events
from qo.dispatcher.events.event_log import ProducedEvent
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import emissions, purged_tasks
from qo.dispatcher.tasks import backpressure, dedupe_keys, rows
from qo.dispatcher.tasks.completed_tasks import CompletedTask, create_completed
from qo.dispatcher.tasks.creation import NewTask
from qo.errors import Forbidden, HeldBack, IdempotencyConflict, NotFound, Refused, UsageError

LOCATION_LEN_MAX = 2000

_PURGED = Prepared(sa.select(purged_tasks.c.id).where(purged_tasks.c.id.in_(sa.bindparam("ids", expanding=True))))


def emit(
    tx: Tx,
    dag: str,
    job: str,
    *,
    key: str,
    events: Sequence[EventBody],
    by: str,
    kind: SourceKind | None = None,
    edition_id: str | None = None,
    coalesced: Coalesced | None = None,
) -> EmitAnswer:
    """Emit events for a source: for all its live editions, or for the one given.

    Repeating a key with the same events returns the earlier answer, and emits only for editions that are new since.
    ``kind``: the only kind of source that the caller may emit for; None: any, except always-on sources, which emit
    through their own task. Raises NotFound for a source that is not live, Refused for one of another kind,
    IdempotencyConflict for a key that came with other events before, UsageError for malformed events, HeldBack if it is
    declared to accept nothing while what it feeds is overfull. ``coalesced``: what the emission stands for.
    """
    if not 1 <= len(key) <= KEY_MAX:
        raise UsageError(f"an idempotency key has 1 to {KEY_MAX} characters, not {len(key)}")
    if not 1 <= len(events) <= EVENTS_MAX:
        raise UsageError(f"an emission has 1 to {EVENTS_MAX} events, not {len(events)}")
    live = topology.load(tx)
    editions = _editions(live, dag, job, kind, edition_id)
    events = _number_outputs(events, editions)
    logical = logical_job_id(dag, job)
    answers = _claim_key(tx, logical, key, events)
    missing = [each for each in editions if each.edition_id not in answers]
    new: dict[str, Any] = {}
    if not answers:
        _refuse_held(tx, live, missing)
    if missing:
        new = _record(
            tx,
            [_emission(each, key, events) for each in missing],
            by,
            coalesced,
            trusted=_may_name_locations(kind),
        )
        answers = answers | new
        this = sa.and_(emissions.c.logical_id == logical, emissions.c.key == key)
        tx.execute(sa.update(emissions).where(this).values(answer=answers))
    selected = [each for id_, each in answers.items() if edition_id in (None, id_)]
    event_ids = [id_ for each in selected for id_ in each["event_ids"]]
    return EmitAnswer(
        task_ids=[each["task_id"] for each in selected],
        event_ids=event_ids,
        accepted=len(event_ids),
        repeated=not new,
        paused=any(live.pause_reason(each) is not None for each in editions),
    )


def _editions(
    live: Topology, dag: str, job: str, kind: SourceKind | None, edition_id: str | None
) -> list[LiveJob]:
    name = f"{dag}.{job}"
    editions = [
        each for each in live.of_dag(dag) if each.job.name == job and edition_id in (None, each.edition_id)
    ]
    if not editions:
        raise NotFound(f"there is no live source {name}: deploy it, or see which there are with qo source list")
    for each in editions:
        source = each.job.source
        if source is None:
            raise Refused(f"{name} is no source: it runs because of its inputs; emit for a source that it reads")
        if source.kind is SourceKind.ALWAYS_ON:
            raise Refused(f"{name} is always on: it emits through the task that runs it")
        if kind is not None and source.kind is not kind:
            raise Refused(f"{name} is a {source.kind} source: an emitter of {kind} sources cannot emit for it")
        if not each.outputs:
            raise Refused(f"{name} has no outputs, so it cannot emit events: give it an output")
    # The active edition first, so that a retried request gets its answers in the same order.
    return sorted(editions, key=lambda each: (each.status is not VersionStatus.ACTIVE, each.edition_id))


def _number_outputs(bodies: Sequence[EventBody], editions: Sequence[LiveJob]) -> list[EventBody]:
    """Return the events with the numbers of their outputs in place of the names of datasets and generations.

    The number holds for all live editions, while each has generations of its own. Raises Forbidden for the dataset of
    another job, Refused for a generation that is not live, UsageError for an output that is another than the named.
    """
    return [_number_output(each, editions) if each.dataset_id or each.generation_id else each for each in bodies]


def _number_output(body: EventBody, editions: Sequence[LiveJob]) -> EventBody:
    source = editions[0].name
    outputs = [each for edition in editions for each in edition.outputs]
    own = [each for each in outputs if body.dataset_id in (None, each.dataset_id)]
    if not own:
        raise Forbidden(f"{source} emits events of its own outputs only: {body.dataset_id} is not one of them")
    current = [each for each in own if body.generation_id in (None, each.generation_id)]
    if not current:
        live = ", ".join(sorted({each.generation_id for each in own}))
        raise Refused(f"generation {body.generation_id} of {source} is not live, only {live}: name that, or none")
    if body.output not in (None, current[0].index):
        raise UsageError(
            f"output {body.output} of {source} is another dataset than the event names: leave one out"
        )
    return body.model_copy(update={"output": current[0].index, "dataset_id": None, "generation_id": None})


def _refuse_held(tx: Tx, live: Topology, editions: Sequence[LiveJob]) -> None:
    """Raises HeldBack for sources whose senders wait. Schedulers and watchers hold back by themselves."""
    for each in editions:
        if each.job.source is not None and each.job.source.kind in (SourceKind.WEBHOOK, SourceKind.MANUAL):
            reason = backpressure.paused(tx, live).get(each.edition_id)
            if reason is not None:
                raise HeldBack(f"{each.name} accepts nothing now: {reason}; try again later")


def _may_name_locations(kind: SourceKind | None) -> bool:
    """Tell whether the emitter may name locations of data. A webhook's sender has no token: it could name files that
    it may not read itself."""
    return kind is not SourceKind.WEBHOOK


def _claim_key(tx: Tx, logical: str, key: str, events: Sequence[EventBody]) -> dict[str, Any]:
    """Return the earlier answers to this key by edition, and lock its row until the transaction ends."""
    bodies = [each.model_dump(exclude_defaults=True) for each in events]
    request_hash = hashlib.sha256(to_json(bodies)).hexdigest()
    new: dict[str, Any] = {
        "logical_id": logical,
        "key": key,
        "request_hash": request_hash,
        "answer": {},
        "at": tx.now,
    }
    if tx.insert_absent(emissions, [new], returning=emissions.c.key):
        return {}
    query = sa.select(emissions).where(emissions.c.logical_id == logical, emissions.c.key == key)
    row = tx.one(tx.lock(query))
    if row is None or row["request_hash"] != request_hash:
        raise IdempotencyConflict(f"the key {key!r} came with other events before: choose another key")
    return cast("dict[str, Any]", row["answer"])


@dataclass(frozen=True, slots=True)
class _Emission:
    """The emission of one edition."""

    job: LiveJob
    outputs: Sequence[Output]
    events: Sequence[Event]
    task: NewTask
    producer: str


def _emission(job: LiveJob, key: str, bodies: Sequence[EventBody]) -> _Emission:
    outputs = live_outputs(job)
    events = _validate(bodies, outputs)
    return _Emission(job, outputs, events, _task(job, key, events), f"source:{job.logical_id}:{key}")


def _record(
    tx: Tx, pending: Sequence[_Emission], by: str, coalesced: Coalesced | None, *, trusted: bool
) -> dict[str, Any]:
    """Store each emission as a completed task with its commits and events; return the answers by edition.

    All emissions are stored together, so that rows are locked in the same order as everywhere else.
    """
    tasks = _create_completed(tx, pending, by, coalesced)
    writes = {each.task.task_id: _writes(each, trusted=trusted) for each in pending}
    commits.lock(tx, [write for of_task in writes.values() for write in of_task])
    commits.commit(
        tx,
        [commits.Entry(row, row["attempt"], write) for row in tasks for write in writes[row["id"]]],
    )
    new = {row["id"] for row in tasks}
    kept_events.accept_all(
        tx,
        [
            ProducedEvent(each.producer, event, each.task.task_id, 1)
            for each in pending
            if each.task.task_id in new  # The events of the others were stored with their tasks.
            for event in each.events
        ],
    )
    return {
        each.job.edition_id: {
            "task_id": each.task.task_id,
            "event_ids": [event_id(each.producer, event) for event in each.events],
        }
        for each in pending
    }


def _writes(emission: _Emission, *, trusted: bool) -> list[Write]:
    placed = ((event, _output_body(event, emission.outputs, trusted=trusted)) for event in emission.events)
    # A cursor without a location needs no commit: the generation stores the greatest.
    return [Write(event, body) for event, body in placed if event.partition_key or body.location]


def _validate(bodies: Sequence[EventBody], outputs: Sequence[Output]) -> list[Event]:
    events = [validate(each) for each in own_events(bodies, outputs)]
    scopes = [(each.dataset_id, each.scope) for each in events]
    if len(set(scopes)) < len(scopes):
        twice = next(scope for at, (_, scope) in enumerate(scopes) if scopes[at] in scopes[:at])
        raise UsageError(f"{twice} is announced twice: name each partition or cursor of an output once")
    return events


def _task(job: LiveJob, key: str, events: Sequence[Event]) -> NewTask:
    only = events[0] if len(events) == 1 else None  # For people who look at the task.
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_emission(key),
        partition_key=only.partition_key if only else None,
        start=only.start if only else None,
        end=only.end if only else None,
        cursor=only.cursor if only else None,
        attributes=only.attributes if only else None,
    )


def _create_completed(
    tx: Tx, pending: Sequence[_Emission], by: str, coalesced: Coalesced | None
) -> list[rows.Row]:
    """Create the tasks of the emissions, completed; return those that are new."""
    purged = _purged(tx, [each.task.task_id for each in pending])
    stands_for = {} if coalesced is None else {"coalesced": coalesced.model_dump(mode="json")}
    return create_completed(
        tx,
        [
            CompletedTask(each.task, by[:200], {"by": by, "events": len(each.events), **stands_for})
            for each in pending
            if each.task.task_id not in purged
        ],
    )


def _purged(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Return the tasks that were purged: what they announced was announced, and the key counts once."""
    return {id_ for (id_,) in tx.rows(_PURGED, {"ids": ids})}


def _output_body(event: Event, outputs: Sequence[Output], *, trusted: bool) -> OutputBody:
    index = next(each.index for each in outputs if each.dataset_id == event.dataset_id)
    attributes: Mapping[str, Any] = event.attributes if trusted else {}
    location, files, size = attributes.get("location"), attributes.get("files", []), attributes.get("size")
    if location is None:
        return OutputBody(output=index)
    if not isinstance(location, str) or not 1 <= len(location) <= LOCATION_LEN_MAX:
        raise UsageError(f"attributes.location must be a text of 1 to {LOCATION_LEN_MAX} characters")
    if not isinstance(files, list) or not all(isinstance(each, str) for each in cast("list[object]", files)):
        raise UsageError("attributes.files must be a list of names below attributes.location")
    bytes_ = size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= SIZE_MAX else None
    return OutputBody(output=index, location=location, files=cast("list[str]", files), bytes=bytes_)
