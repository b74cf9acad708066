"""What sources say: by hand, on a schedule, through a webhook, because a file came. One way in for all of them.

An emission is a task that is over as soon as it is there: it shows who said what and when, it is the producer of its
events, and it commits the partitions they announce, so that whoever looks for missed work finds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import sqlalchemy as sa

from qo.api.contract.source import EVENTS_MAX, KEY_MAX, EmitAnswer
from qo.api.contract.task import SIZE_MAX, EventBody, OutputBody
from qo.core.lifecycle import Claim, Complete, Rejected
from qo.core.pipeline.dag import SourceKind, to_json
from qo.core.pipeline.event import Event, validate
from qo.core.pipeline.plan import derive_id, logical_job_id
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.attempts.running import own_events
from qo.dispatcher.commits import commits
from qo.dispatcher.commits.outputs import Output, Write
from qo.dispatcher.events import event_log as kept_events
from qo.dispatcher.events.event_log import ProducedEvent
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import emissions
from qo.dispatcher.tasks import dedupe_keys, rows
from qo.dispatcher.tasks.creation import NewTask, create
from qo.errors import IdempotencyConflict, NotFound, Refused, UsageError

LOCATION_LEN_MAX = 2000


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
) -> EmitAnswer:
    """Say something new for a source: for all its live editions, or for the one given.

    The same key with the same events is answered as before, and does something only for editions that have not heard
    it. ``kind``: who speaks can speak for such sources only; None: for all but always-on ones, which speak themselves.
    Raises NotFound for a source that is not live, Refused for one of another kind, IdempotencyConflict for a key that
    came with other events before, UsageError for events that are malformed.
    """
    if not 1 <= len(key) <= KEY_MAX:
        raise UsageError(f"an idempotency key has 1 to {KEY_MAX} characters, not {len(key)}")
    if not 1 <= len(events) <= EVENTS_MAX:
        raise UsageError(f"an emission has 1 to {EVENTS_MAX} events, not {len(events)}")
    live = topology.load(tx)
    editions = _editions(live, dag, job, kind, edition_id)
    logical = logical_job_id(dag, job)
    told = _told(tx, logical, key, events)
    missing = [each for each in editions if each.edition_id not in told]
    said: dict[str, Any] = {}
    if missing:
        said = _record(tx, [_emission(each, key, events) for each in missing], by, trusted=_trusts(kind))
        told = told | said
        this = sa.and_(emissions.c.logical_id == logical, emissions.c.key == key)
        tx.execute(sa.update(emissions).where(this).values(answer=told))
    chosen = [each for id_, each in told.items() if edition_id in (None, id_)]
    event_ids = [id_ for each in chosen for id_ in each["event_ids"]]
    return EmitAnswer(
        task_ids=[each["task_id"] for each in chosen],
        event_ids=event_ids,
        accepted=len(event_ids),
        repeated=not said,
        paused=any(live.pause_reason(each) is not None for each in editions),
    )


def _editions(
    live: Topology, dag: str, job: str, kind: SourceKind | None, edition_id: str | None
) -> list[LiveJob]:
    name = f"{dag}.{job}"
    found = [each for each in live.jobs.values() if each.name == name and edition_id in (None, each.edition_id)]
    if not found:
        raise NotFound(f"there is no live source {name}: deploy it, or see which there are with qo source list")
    for each in found:
        source = each.job.source
        if source is None:
            raise Refused(f"{name} is no source: it runs because of its inputs; emit for a source that it reads")
        if source.kind is SourceKind.ALWAYS_ON:
            raise Refused(f"{name} is always on and speaks for itself, through the task that runs it")
        if kind is not None and source.kind is not kind:
            raise Refused(f"{name} is a {source.kind} source: who speaks for {kind} sources cannot speak for it")
        if not each.outputs:
            raise Refused(f"{name} has no outputs, so there is nothing it could say something about")
    # The active one first: of a retried request, its answer comes first again.
    return sorted(found, key=lambda each: (each.status is not VersionStatus.ACTIVE, each.edition_id))


def _trusts(kind: SourceKind | None) -> bool:
    """Whether it may say where data lies. Who only signs messages could have others read what it cannot itself."""
    return kind is not SourceKind.WEBHOOK


def _told(tx: Tx, logical: str, key: str, events: Sequence[EventBody]) -> dict[str, Any]:
    """By edition, what was answered to this key before. The row is ours until the transaction ends."""
    said = [each.model_dump(exclude_defaults=True) for each in events]
    request_hash = hashlib.sha256(to_json(said)).hexdigest()
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
    """What one edition is to say."""

    job: LiveJob
    made: Sequence[Output]
    events: Sequence[Event]
    task: NewTask
    producer: str


def _emission(job: LiveJob, key: str, said: Sequence[EventBody]) -> _Emission:
    made = [Output(each.index, each.dataset_id, each.generation_id) for each in job.outputs]
    wanted = _checked(said, made)
    return _Emission(job, made, wanted, _task(job, key, wanted), f"source:{job.logical_id}:{key}")


def _record(tx: Tx, wanted: Sequence[_Emission], by: str, *, trusted: bool) -> dict[str, Any]:
    """Each as a task that has completed, with its commits and events; the answers by edition.

    All of them together and not one by one, so that everything is locked in the order in which all others do it.
    """
    done = _done(tx, wanted, by)
    writes = {each.task.task_id: _writes(each, trusted=trusted) for each in wanted}
    commits.hold(tx, {made.generation_id for each in wanted for made in each.made})
    commits.commit(
        tx,
        [commits.Entry(row, row["attempt"], write) for row in done for write in writes[row["id"]]],
    )
    said = [ProducedEvent(each.producer, event, each.task.task_id, 1) for each in wanted for event in each.events]
    ids = iter(kept_events.accept_all(tx, said).ids)
    return {
        each.job.edition_id: {"task_id": each.task.task_id, "event_ids": list(islice(ids, len(each.events)))}
        for each in wanted
    }


def _writes(emission: _Emission, *, trusted: bool) -> list[Write]:
    placed = ((event, _body(event, emission.made, trusted=trusted)) for event in emission.events)
    # A cursor without a place is only a number; the generation keeps the greatest.
    return [Write(event, body) for event, body in placed if event.partition_key or body.location]


def _checked(said: Sequence[EventBody], made: Sequence[Output]) -> list[Event]:
    if any(each.dataset_id or each.generation_id for each in said):
        raise UsageError("an event of a source names its output by number, not a dataset or generation")
    wanted = [validate(each) for each in own_events(said, made)]
    scopes = [(each.dataset_id, each.scope) for each in wanted]
    if len(set(scopes)) < len(scopes):
        twice = next(scope for at, (_, scope) in enumerate(scopes) if scopes[at] in scopes[:at])
        raise UsageError(f"{twice} is announced twice: name each partition or cursor of an output once")
    return wanted


def _task(job: LiveJob, key: str, wanted: Sequence[Event]) -> NewTask:
    only = wanted[0] if len(wanted) == 1 else None  # For people who look at the task.
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_emission(key),
        partition_key=only.partition_key if only else None,
        start=only.start if only else None,
        end=only.end if only else None,
        cursor=only.cursor if only else None,
        attributes=only.attributes if only else None,
    )


def _done(tx: Tx, wanted: Sequence[_Emission], by: str) -> list[rows.Row]:
    """Their tasks, begun and completed here; those that were not there before."""
    new = {each.task_id for each in create(tx, [each.task for each in wanted]) if each.new}
    known = rows.load_all(tx, sorted(new))
    leases = {id_: derive_id("lease", id_, 1) for id_ in known}
    begun = _moved(
        tx,
        [
            rows.Move(row, Claim(tx.ambient.token(), lease_id=leases[id_], worker_id=by[:200]))
            for id_, row in known.items()
        ],
    )
    output = {each.task.task_id: {"by": by, "events": len(each.events)} for each in wanted}
    return _moved(
        tx,
        [
            rows.Move(row, Complete(tx.ambient.token(), lease_id=row["lease_id"], output=output[row["id"]]))
            for row in begun
        ],
    )


def _moved(tx: Tx, moves: Sequence[rows.Move]) -> list[rows.Row]:
    moved: list[rows.Row] = []
    for each in rows.move_all(tx, moves):
        if isinstance(each, Rejected):
            raise AssertionError(each.detail)
        moved.append(each.row)
    return moved


def _body(event: Event, made: Sequence[Output], *, trusted: bool) -> OutputBody:
    index = next(each.index for each in made if each.dataset_id == event.dataset_id)
    given: Mapping[str, Any] = event.attributes if trusted else {}
    location, files, size = given.get("location"), given.get("files", []), given.get("size")
    if location is None:
        return OutputBody(output=index)
    if not isinstance(location, str) or not 1 <= len(location) <= LOCATION_LEN_MAX:
        raise UsageError(f"attributes.location must be a text of 1 to {LOCATION_LEN_MAX} characters")
    if not isinstance(files, list) or not all(isinstance(each, str) for each in cast("list[object]", files)):
        raise UsageError("attributes.files must be a list of names below attributes.location")
    counted = size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= SIZE_MAX else None
    return OutputBody(output=index, location=location, files=cast("list[str]", files), bytes=counted)
