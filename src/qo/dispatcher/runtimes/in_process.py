"""The runtime ``dispatcher``: bookkeeping that needs no worker, done where the books are.

    noop               passes on what it got: the same partition, with its files, or the same cursor
    range_splitter     cuts a partition's range into chunks of ``chunk_size``; the files stay those of the whole
    range_aggregator   closes ranges of ``range_size``, from ``start`` on, as the cursor of its input moves over them

A run is claimed, worked out and completed in one transaction: it has happened or it has not, and of two dispatchers
one finds nothing to claim. Runs of one edition share a transaction, and those of different partitions its statements,
for that is what they cost most.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.task import (
    FILES_MAX,
    Claimed,
    ClaimRequest,
    CompleteRequest,
    EventBody,
    InputMode,
    Outcome,
    OutputBody,
    Piece,
    Work,
    WorkOutput,
)
from qo.core.pipeline.event import Event, validate
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.ranges import Aggregate, aggregate, split
from qo.core.pipeline.states import EffectKind
from qo.core.task import Status
from qo.dispatcher.attempts import claiming, completion, pins
from qo.dispatcher.attempts.completion import Ending
from qo.dispatcher.commits.outputs import Write
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect, TakenEffect
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.errors import UsageError
from qo.pipeline.operators.built_in import BUILT_IN

log = logging.getLogger(__name__)

WORKER = "dispatcher"
BATCH = 50  # Wake-ups that are taken at once.
RANGES_KEY = "ranges"  # Of the aggregator's memory in operator_state.


@dataclass(frozen=True, slots=True)
class Made:
    """What a run makes, and what its operator remembers once that counts."""

    writes: Sequence[Write] = ()
    events: Sequence[EventBody] = ()
    state: Aggregate | None = None


@dataclass(frozen=True, slots=True)
class _Due:
    """A wake-up, and what its task is about."""

    wake: Effect
    partition_key: str | None

    @property
    def lease_id(self) -> str:
        return derive_id("run", self.wake.id)  # A wake-up begins one attempt at most.


def tick(state: State, data_root: str, limit: int = BATCH) -> int:
    """Run up to ``limit`` tasks whose turn it is; how many wake-ups were dealt with."""
    with state.read() as tx:
        if not outbox.due(tx, {EffectKind.RUN}):
            return 0  # Whoever has nothing to run keeps no writer waiting.
    with state.write() as tx:
        batches = _by_edition(tx, outbox.take(tx, limit, {EffectKind.RUN}))
    for batch in batches:
        _run_batch(state, batch, data_root)
    return sum(map(len, batches))


def _by_edition(tx: Tx, taken: Sequence[TakenEffect]) -> list[list[_Due]]:
    """Runs of one edition lock the same rows in the same order; of several, they could wait crosswise."""
    tasks, ids = schema.tasks, {each.effect.task_id for each in taken}
    query = sa.select(tasks.c.id, tasks.c.edition_id, tasks.c.partition_key).where(tasks.c.id.in_(ids))
    known = {row["id"]: row for row in tx.all(query)} if ids else {}
    batches: dict[str | None, list[_Due]] = {}
    for each in taken:
        row = known.get(each.effect.task_id)
        edition, key = (row["edition_id"], row["partition_key"]) if row is not None else (None, None)
        batches.setdefault(edition, []).append(_Due(each.effect, key))
    return list(batches.values())


def _run_batch(state: State, batch: Sequence[_Due], data_root: str) -> None:
    try:
        with state.write() as tx:
            for some in _side_by_side(batch):
                _run(tx, some, data_root)
            outbox.mark_done(tx, [each.wake.id for each in batch])
    except Exception as error:
        # Nothing of it has happened. One of them must not keep the others from being done.
        if len(batch) > 1:
            for each in batch:
                _run_batch(state, [each], data_root)
            return
        wake = batch[0].wake
        log.exception("task %s could not be run", wake.task_id)
        with state.write() as tx:
            outbox.mark_failed(tx, wake.id, f"{type(error).__name__}: {error}")


def _side_by_side(batch: Sequence[_Due]) -> list[list[_Due]]:
    """In order, in groups of different partitions: these know nothing of each other. What follows a cursor goes on
    from where the run before it ended."""
    groups: list[dict[str | None, _Due]] = []
    for each in batch:
        key = each.partition_key
        if key is None or not groups or not groups[-1].keys().isdisjoint({key, None}):
            groups.append({})
        groups[-1][key] = each
    return [list(group.values()) for group in groups]


def _run(tx: Tx, batch: Sequence[_Due], data_root: str) -> None:
    """Claim, work out, complete. What cannot be claimed has been run, or will be woken again."""
    asked = [ClaimRequest(task_id=each.wake.task_id, worker_id=WORKER, lease_id=each.lease_id) for each in batch]
    claims = [each for each in claiming.claim_all(tx, asked, data_root) if isinstance(each, Claimed)]
    made = [_made(tx, each.work) for each in claims]
    answers = completion.complete_all(tx, [_ending(*each) for each in zip(claims, made, strict=True)])
    for claim, run, answer in zip(claims, made, answers, strict=True):
        if isinstance(run, Made) and run.state is not None and answer.status == Status.COMPLETED:
            _remember(tx, claim.work.task_id, run.state)


def _ending(claim: Claimed, made: Made | UsageError) -> Ending:
    attempt = {"task_id": claim.work.task_id, "attempt": claim.attempt, "lease_id": claim.lease_id}
    if isinstance(made, UsageError):  # It will not get better by trying again.
        failed = attempt | {"outcome": Outcome.FATAL, "error": str(made)}
        return Ending(CompleteRequest.model_validate(failed))
    done = attempt | {"outcome": Outcome.SUCCESS, "events": made.events}
    return Ending(CompleteRequest.model_validate(done), trusted=made.writes)


def _made(tx: Tx, work: Work) -> Made | UsageError:
    try:
        return _worked_out(tx, work)
    except UsageError as error:
        return error


def _worked_out(tx: Tx, work: Work) -> Made:
    """Raises UsageError for work that makes no sense."""
    spec = BUILT_IN.get(work.operator)
    if spec is None or "dispatcher" not in spec.runtimes:
        raise UsageError(f"the dispatcher itself cannot run {work.operator!r}: choose another runtime for it")
    return spec.load()(tx, work)


def pass_on(tx: Tx, work: Work) -> Made:
    """The operator ``noop``."""
    if work.partition_key is None:
        said = [
            EventBody(output=each.index, cursor=work.cursor) for each in work.outputs if work.cursor is not None
        ]
        return Made(events=said)
    whole = _place(tx, work)
    return Made(
        writes=[_write(work, output, work.partition_key, work.start, work.end, whole) for output in work.outputs]
    )


def split_partition(tx: Tx, work: Work) -> Made:
    """The operator ``range_splitter``."""
    if work.start is None or work.end is None:
        raise UsageError(f"partition {work.partition_key} has no range to split: give its events start and end")
    whole, size = _place(tx, work), _whole_number(work, "chunk_size")
    return Made(
        writes=[
            _write(work, output, chunk.partition_key, chunk.start, chunk.end, whole)
            for output in work.outputs
            for chunk in split(work.start, work.end, size)
        ]
    )


def close_ranges(tx: Tx, work: Work) -> Made:
    """The operator ``range_aggregator``."""
    if work.cursor is None:
        raise UsageError("a range_aggregator follows a cursor: its input must emit cursors, not partitions")
    start = _whole_number(work, "start") if "start" in work.config else 0
    known = Aggregate(_whole_number(work, "range_size"), start, _recalled(tx, work.task_id))
    after, closed = aggregate(known, work.cursor)
    return Made(
        writes=[
            _write(work, output, each.partition_key, each.start, each.end, _Place())
            for output in work.outputs
            for each in closed
        ],
        state=after if closed else None,
    )


def _whole_number(work: Work, name: str) -> int:
    value = work.config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"the config of {work.job} needs {name}, a whole number, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class _Place:
    location: str | None = None
    files: tuple[str, ...] = ()
    revisions: tuple[int, ...] = ()  # That they are of.


def _place(tx: Tx, work: Work) -> _Place:
    """Where the partition that was read lies. One in several pieces keeps them all, by full names.

    Raises UsageError if it has more files than one commit may name.
    """
    pieces = [piece for piece in _pieces(tx, work) if piece.location is not None]
    if not pieces:
        return _Place()
    first, revisions = pieces[0], tuple(piece.revision for piece in pieces)
    if len(pieces) == 1:
        return _Place(first.location, tuple(first.files), revisions)
    return _Place(first.location, tuple(uri for piece in pieces for uri in _uris(piece)), revisions)


def _pieces(tx: Tx, work: Work) -> list[Piece]:
    """Every piece of the task's partition: those that travel with the claim are only the first."""
    found: list[Piece] = []
    files = 0
    for each in work.inputs:
        if each.mode is not InputMode.PARTITION:
            continue  # Of an input that is read whole nothing is passed on: it has no such partition.
        page, after = each.pieces, each.after if each.more else None
        while True:
            found += page
            files += sum(len(piece.files) for piece in page)
            if files > FILES_MAX:
                raise UsageError(
                    f"partition {work.partition_key} has more than {FILES_MAX:,} files, which is the most that "
                    f"{work.operator} passes on: read it with a job of the operator compact first, and let {work.job} "
                    "read that"
                )
            if after is None:
                break
            page, after = pins.page(tx, work.task_id, each.position, after)
    return found


def _uris(piece: Piece) -> Iterator[str]:
    """The full name of every file; a piece that was itself passed on has such already."""
    for name in piece.files:
        yield name if ":/" in name else f"{str(piece.location).rstrip('/')}/{name}"


def _write(work: Work, output: WorkOutput, key: str, start: int | None, end: int | None, place: _Place) -> Write:
    event = Event(
        dataset_id=output.dataset_id,
        generation_id=output.generation_id,
        partition_key=key,
        start=start,
        end=end,
        attributes=work.attributes if place.location is not None or key == work.partition_key else {},
    )
    body = OutputBody(output=output.index, location=place.location, files=list(place.files))
    return Write(validate(event), body, borrowed=place.revisions)


def _edition(tx: Tx, task_id: str) -> str:
    return str(tx.value(sa.select(schema.tasks.c.edition_id).where(schema.tasks.c.id == task_id)))


def _recalled(tx: Tx, task_id: str) -> int | None:
    """How far ranges have been closed. The row is ours until the transaction ends, so each is closed once."""
    table, edition = schema.operator_state, _edition(tx, task_id)
    new = {"edition_id": edition, "key": RANGES_KEY, "value": {"end": None}, "updated_at": tx.now}
    tx.insert_absent(table, [new], returning=table.c.key)
    row = tx.value(
        tx.lock(sa.select(table.c.value).where(table.c.edition_id == edition, table.c.key == RANGES_KEY))
    )
    return row["end"]


def _remember(tx: Tx, task_id: str, state: Aggregate) -> None:
    table, edition = schema.operator_state, _edition(tx, task_id)
    this = sa.and_(table.c.edition_id == edition, table.c.key == RANGES_KEY)
    tx.execute(sa.update(table).where(this).values(value={"end": state.end}, updated_at=tx.now))
