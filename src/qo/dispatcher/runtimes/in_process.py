"""The runtime ``dispatcher``: operators that only move metadata, run in the dispatcher itself.

    noop               passes its input on: the same partition, with its files, or the same cursor
    range_splitter     splits a partition's range into chunks of ``chunk_size``, each with all files of the partition
    range_aggregator   closes ranges of ``range_size``, from ``start`` on, as the cursor of its input passes them

A task is claimed, run and completed in one transaction, so of two dispatchers one finds nothing to claim. Tasks of one
edition share a transaction, and those of different partitions its statements, because statements cost most.
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
class RunResult:
    """The outputs of a run, and the operator's memory to store once they are committed."""

    writes: Sequence[Write] = ()
    events: Sequence[EventBody] = ()
    state: Aggregate | None = None


@dataclass(frozen=True, slots=True)
class _DueTask:
    """A wake-up, and the partition of its task."""

    wake: Effect
    partition_key: str | None

    @property
    def lease_id(self) -> str:
        return derive_id("run", self.wake.id)  # A wake-up starts one attempt at most.


def tick(state: State, data_root: str, limit: int = BATCH) -> int:
    """Run up to ``limit`` due tasks; returns how many wake-ups were handled."""
    with state.read() as tx:
        if not outbox.due(tx, {EffectKind.RUN}):
            return 0  # Without a write transaction, which would keep other writers waiting.
    with state.write() as tx:
        batches = _by_edition(tx, outbox.take(tx, limit, {EffectKind.RUN}))
    for batch in batches:
        _run_batch(state, batch, data_root)
    return sum(map(len, batches))


def _by_edition(tx: Tx, wakes: Sequence[TakenEffect]) -> list[list[_DueTask]]:
    """Group the wake-ups by edition. Tasks of one edition lock the same rows in the same order; tasks of several could
    deadlock."""
    tasks, ids = schema.tasks, {each.effect.task_id for each in wakes}
    query = sa.select(tasks.c.id, tasks.c.edition_id, tasks.c.partition_key).where(tasks.c.id.in_(ids))
    rows = {row["id"]: row for row in tx.all(query)} if ids else {}
    batches: dict[str | None, list[_DueTask]] = {}
    for each in wakes:
        row = rows.get(each.effect.task_id)
        edition, key = (row["edition_id"], row["partition_key"]) if row is not None else (None, None)
        batches.setdefault(edition, []).append(_DueTask(each.effect, key))
    return list(batches.values())


def _run_batch(state: State, batch: Sequence[_DueTask], data_root: str) -> None:
    try:
        with state.write() as tx:
            for group in _group_partitions(batch):
                _run(tx, group, data_root)
            outbox.mark_done(tx, [each.wake.id for each in batch])
    except Exception as error:
        # The whole batch was rolled back. Run each alone, so that one failure does not stop the others.
        if len(batch) > 1:
            for each in batch:
                _run_batch(state, [each], data_root)
            return
        wake = batch[0].wake
        log.exception("task %s could not be run", wake.task_id)
        with state.write() as tx:
            outbox.mark_failed(tx, wake.id, f"{type(error).__name__}: {error}")


def _group_partitions(batch: Sequence[_DueTask]) -> list[list[_DueTask]]:
    """Split the batch, in order, into groups of different partitions, which are independent of each other. A task that
    follows a cursor depends on the one before it, so it is alone."""
    groups: list[dict[str | None, _DueTask]] = []
    for each in batch:
        key = each.partition_key
        if key is None or not groups or not groups[-1].keys().isdisjoint({key, None}):
            groups.append({})
        groups[-1][key] = each
    return [list(group.values()) for group in groups]


def _run(tx: Tx, batch: Sequence[_DueTask], data_root: str) -> None:
    """Claim, run and complete the tasks. One that cannot be claimed has been run, or will be woken again."""
    requests = [
        ClaimRequest(task_id=each.wake.task_id, worker_id=WORKER, lease_id=each.lease_id) for each in batch
    ]
    claims = [each for each in claiming.claim_all(tx, requests, data_root) if isinstance(each, Claimed)]
    results = [_try_run(tx, each.work) for each in claims]
    answers = completion.complete_all(tx, [_ending(*each) for each in zip(claims, results, strict=True)])
    for claim, result, answer in zip(claims, results, answers, strict=True):
        if isinstance(result, RunResult) and result.state is not None and answer.status == Status.COMPLETED:
            _store_memory(tx, claim.work.task_id, result.state)


def _ending(claim: Claimed, result: RunResult | UsageError) -> Ending:
    attempt = {"task_id": claim.work.task_id, "attempt": claim.attempt, "lease_id": claim.lease_id}
    if isinstance(result, UsageError):  # A retry would fail the same way.
        failed = attempt | {"outcome": Outcome.FATAL, "error": str(result)}
        return Ending(CompleteRequest.model_validate(failed))
    success = attempt | {"outcome": Outcome.SUCCESS, "events": result.events}
    return Ending(CompleteRequest.model_validate(success), trusted=result.writes)


def _try_run(tx: Tx, work: Work) -> RunResult | UsageError:
    try:
        return _run_operator(tx, work)
    except UsageError as error:
        return error


def _run_operator(tx: Tx, work: Work) -> RunResult:
    """Run the operator of the work. Raises UsageError for work that it cannot do."""
    spec = BUILT_IN.get(work.operator)
    if spec is None or "dispatcher" not in spec.runtimes:
        raise UsageError(f"the dispatcher itself cannot run {work.operator!r}: choose another runtime for it")
    return spec.load()(tx, work)


def pass_on(tx: Tx, work: Work) -> RunResult:
    """The operator ``noop``."""
    if work.partition_key is None:
        events = [
            EventBody(output=each.index, cursor=work.cursor) for each in work.outputs if work.cursor is not None
        ]
        return RunResult(events=events)
    whole = _input_files(tx, work)
    return RunResult(
        writes=[_write(work, output, work.partition_key, work.start, work.end, whole) for output in work.outputs]
    )


def split_partition(tx: Tx, work: Work) -> RunResult:
    """The operator ``range_splitter``."""
    if work.start is None or work.end is None:
        raise UsageError(f"partition {work.partition_key} has no range to split: give its events start and end")
    whole, size = _input_files(tx, work), _whole_number(work, "chunk_size")
    return RunResult(
        writes=[
            _write(work, output, chunk.partition_key, chunk.start, chunk.end, whole)
            for output in work.outputs
            for chunk in split(work.start, work.end, size)
        ]
    )


def close_ranges(tx: Tx, work: Work) -> RunResult:
    """The operator ``range_aggregator``."""
    if work.cursor is None:
        raise UsageError("a range_aggregator follows a cursor: its input must emit cursors, not partitions")
    start = _whole_number(work, "start") if "start" in work.config else 0
    before = Aggregate(_whole_number(work, "range_size"), start, _load_memory(tx, work.task_id))
    after, closed = aggregate(before, work.cursor)
    return RunResult(
        writes=[
            _write(work, output, each.partition_key, each.start, each.end, _Files())
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
class _Files:
    location: str | None = None
    files: tuple[str, ...] = ()
    revisions: tuple[int, ...] = ()  # Of the commits that they belong to.


def _input_files(tx: Tx, work: Work) -> _Files:
    """Return the files of the partition that was read; by full names if it has several pieces.

    Raises UsageError if it has more files than one commit may name.
    """
    pieces = [piece for piece in _pieces(tx, work) if piece.location is not None]
    if not pieces:
        return _Files()
    first, revisions = pieces[0], tuple(piece.revision for piece in pieces)
    if len(pieces) == 1:
        return _Files(first.location, tuple(first.files), revisions)
    return _Files(first.location, tuple(uri for piece in pieces for uri in _uris(piece)), revisions)


def _pieces(tx: Tx, work: Work) -> list[Piece]:
    """Return every piece of the task's partition: the claim holds only the first ones."""
    pieces: list[Piece] = []
    files = 0
    for each in work.inputs:
        if each.mode is not InputMode.PARTITION:
            continue  # An input that is read whole has no such partition to pass on.
        page, after = each.pieces, each.after if each.more else None
        while True:
            pieces += page
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
    return pieces


def _uris(piece: Piece) -> Iterator[str]:
    """Yield the full name of every file; a piece that was itself passed on has full names already."""
    for name in piece.files:
        yield name if ":/" in name else f"{str(piece.location).rstrip('/')}/{name}"


def _write(work: Work, output: WorkOutput, key: str, start: int | None, end: int | None, source: _Files) -> Write:
    event = Event(
        dataset_id=output.dataset_id,
        generation_id=output.generation_id,
        partition_key=key,
        start=start,
        end=end,
        attributes=work.attributes if source.location is not None or key == work.partition_key else {},
    )
    body = OutputBody(output=output.index, location=source.location, files=list(source.files))
    return Write(validate(event), body, borrowed=source.revisions)


def _edition(tx: Tx, task_id: str) -> str:
    return str(tx.value(sa.select(schema.tasks.c.edition_id).where(schema.tasks.c.id == task_id)))


def _load_memory(tx: Tx, task_id: str) -> int | None:
    """Return how far ranges have been closed. The row is locked until the transaction ends, so each is closed once."""
    table, edition = schema.operator_state, _edition(tx, task_id)
    new = {"edition_id": edition, "key": RANGES_KEY, "value": {"end": None}, "updated_at": tx.now}
    tx.insert_absent(table, [new], returning=table.c.key)
    row = tx.value(
        tx.lock(sa.select(table.c.value).where(table.c.edition_id == edition, table.c.key == RANGES_KEY))
    )
    return row["end"]


def _store_memory(tx: Tx, task_id: str, state: Aggregate) -> None:
    table, edition = schema.operator_state, _edition(tx, task_id)
    this = sa.and_(table.c.edition_id == edition, table.c.key == RANGES_KEY)
    tx.execute(sa.update(table).where(this).values(value={"end": state.end}, updated_at=tx.now))
