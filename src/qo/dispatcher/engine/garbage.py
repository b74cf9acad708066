"""Garbage: which files may be deleted.

Every attempt writes below a prefix of its own, so the verdict is about attempts:

    kept    running attempts, and attempts that timed out and may still finish
    kept    attempts that ended, and output that was rejected or replaced, within the retention
    kept    current output of a generation, and replaced output that a running task may still read, or that a
            PerChange job has yet to compare with what replaced it
    gone    the rest: attempts without a commit, and output that was replaced long ago

The log of an attempt is kept while it runs and for a while after it, whatever became of its output. So is one that the
state has forgotten, by the day in its path.

A file is in use by all commits that name it: that of its own attempt, and those that share it (``loans``).

The verdict "gone" is final: no fact that it rests on can change. The commits are marked, and can no longer be read.
Current output of a generation without a live version is given up only on request (``retired``). Then the generation
is marked as well, and no version can use it again: deploying or rolling back to one is refused.

Replaced output that a snapshot of a table shows is kept until the table has dropped it.

``views.manifests`` judges the files of manifests, and ``tables.table_retention`` those of tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.garbage import JudgeRequest, PrefixVerdict
from qo.core import run_log
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.topology import LIVE
from qo.dispatcher.commits.retention import COLLECTION_LOCK
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tables import table_retention
from qo.dispatcher.views import manifests

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PREFIX = re.compile(
    rf"(?P<dataset>{_ID})/(?P<generation>{_ID})/(?P<task>{_ID})/(?P<attempt>[1-9][0-9]{{0,8}})/?\Z"
)

_attempts, _tasks, _commits, _loans = schema.attempts, schema.tasks, schema.commits, schema.loans
_generations, _inputs, _versions = schema.generations, schema.task_inputs, schema.dag_versions
_WRITER = (_commits.c.task_id, _commits.c.attempt, _commits.c.generation_id)


def judge(tx: Tx, request: JudgeRequest) -> list[PrefixVerdict]:
    """Return a verdict for each prefix, in order. Needs a write transaction, unless it is a dry run."""
    if request.retired and not request.dry_run:
        topology.hold(tx)  # No deploy or rollback meanwhile.
    if not request.dry_run:
        tx.hold(COLLECTION_LOCK)  # Two collections would mark the same rows in different orders.
        tx.require_durable()  # The files are deleted after the verdict, so the marks must not be lost.
    before = tx.now - timedelta(seconds=request.keep_s)
    places = {text: place for text in request.prefixes if (place := _parse_prefix(text)) is not None}
    evidence = _Evidence(tx, set(places.values()), before, retired=request.retired)
    verdicts = manifests.judge(tx, request.prefixes, before)
    verdicts |= table_retention.judge_metadata(tx, request.prefixes, before)
    log_keep_s = request.keep_s if request.log_keep_s is None else request.log_keep_s
    verdicts |= _judge_logs(tx, request.prefixes, tx.now - timedelta(seconds=log_keep_s))
    for text, place in places.items():
        reason = evidence.reason_to_keep(place)
        verdicts[text] = (reason is None, reason or evidence.reason_to_delete(place))
    if not request.dry_run:
        table_retention.mark_expired(tx, evidence.listing_datasets, before)
        _mark_collected(tx, evidence, {place for text, place in places.items() if verdicts[text][0]})
    unknown = (False, "neither the prefix of an attempt nor a manifest nor a log nor a file of a table")
    answers = [(text, *verdicts.get(text, unknown)) for text in request.prefixes]
    return [PrefixVerdict(prefix=text, gone=is_gone, why=why) for text, is_gone, why in answers]


def _judge_logs(tx: Tx, prefixes: Sequence[str], before: datetime) -> dict[str, tuple[bool, str]]:
    """Return for each prefix of a log whether it may be deleted, and why."""
    logs = {text: match for text in prefixes if (match := run_log.PREFIX.match(text)) is not None}
    keys = {text: (match["task"], int(match["attempt"])) for text, match in logs.items()}
    attempts = _load_attempts(tx, set(keys.values())) if keys else {}
    verdicts: dict[str, tuple[bool, str]] = {}
    for text, key in keys.items():
        attempt = attempts.get(key)
        if attempt is not None and attempt["ended_at"] is None:
            verdicts[text] = False, "the attempt is running"
        elif (_day_end(logs[text]["day"]) if attempt is None else attempt["ended_at"]) > before:
            verdicts[text] = False, "the log is not old"
        else:
            verdicts[text] = True, "the log is old"
    return verdicts


def _day_end(day: str) -> datetime:
    """Return when a day of a path ended; the last moment there is for a day that does not exist."""
    try:
        return datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Place:
    dataset_id: str
    generation_id: str
    task_id: str
    attempt: int


def _parse_prefix(text: str) -> _Place | None:
    match = PREFIX.match(text)
    return match and _Place(match["dataset"], match["generation"], match["task"], int(match["attempt"]))


@dataclass(frozen=True, slots=True)
class _Use:
    """The commits to one generation that name files of a place, summed up because a stream makes very many: what is
    kept for one of them is kept for all."""

    generation_id: str
    is_current: bool  # At least one of them was not replaced.
    first: int
    replaced_by: int | None  # The last revision that replaced one of them.
    replaced_at: datetime | None

    def was_read_at(self, revision: int) -> bool:
        return self.replaced_by is not None and self.first <= revision < self.replaced_by


class _Evidence:
    """The facts that the verdicts about some prefixes rest on."""

    def __init__(self, tx: Tx, places: Collection[_Place], before: datetime, *, retired: bool) -> None:
        self._before = before
        self._attempts = _load_attempts(tx, {(each.task_id, each.attempt) for each in places})
        self._purged = _purged_places(tx, [each for each in places if self._attempt(each) is None])
        # A running attempt is kept, whatever it has committed.
        ended = {each for each in places if self._reason_of_attempt(each) is None}
        self.uses = _load_uses(tx, ended)
        used = {use.generation_id for uses in self.uses.values() for use in uses}
        self._generations = _load_generations(tx, {each.generation_id for each in places} | used)
        tasks = _active_tasks(tx)
        self._pinned = _pinned_revisions(tx, tasks, used)
        self._to_compare = _revisions_to_compare(tx, used)
        self._earliest_starts = _earliest_starts(tasks)
        self._retired_generations = _retired_generations(tx, used, before) if retired else set[str]()
        self._listed = table_retention.listed_revisions(
            tx, {self._generations[each]["dataset_id"] for each in used if each in self._generations}
        )
        self.listing_datasets: set[str] = set()  # Whose tables alone keep something.

    def reason_to_keep(self, place: _Place) -> str | None:
        """Return why a place must be kept; None if it may be deleted."""
        generation = self._generations.get(place.generation_id)
        if generation is None or generation["dataset_id"] != place.dataset_id:
            return "this dispatcher does not know it"
        reasons = [
            self._reason_of_attempt(place),
            *(self._reason_of_use(place, use) for use in self.uses.get(place, ())),
        ]
        return next((each for each in reasons if each is not None), None)

    def current_generations(self, place: _Place) -> set[str]:
        """Return the generations of which its files are current."""
        return {use.generation_id for use in self.uses.get(place, ()) if use.is_current}

    def reason_to_delete(self, place: _Place) -> str:
        """Return why a place may be deleted."""
        if place not in self.uses:
            return "its task was purged" if place in self._purged else "the attempt committed nothing"
        return (
            "no version can use its generation" if self.current_generations(place) else "it was replaced long ago"
        )

    def _attempt(self, place: _Place) -> sa.RowMapping | None:
        return self._attempts.get((place.task_id, place.attempt))

    def _reason_of_attempt(self, place: _Place) -> str | None:
        """Return why it must be kept, whatever it has committed; None if its attempt gives no reason."""
        attempt = self._attempt(place)
        if attempt is None:
            return None if place in self._purged else "this dispatcher does not know it"
        if attempt["ended_at"] is None:
            return "the attempt is running"
        if attempt["late_lease_id"] == attempt["lease_id"]:
            return "the attempt timed out and may still finish"
        return "the attempt ended not long ago" if attempt["ended_at"] > self._before else None

    def _reason_of_use(self, place: _Place, use: _Use) -> str | None:
        generation = self._generations[use.generation_id]
        is_given_up = generation["collected_at"] is not None or use.generation_id in self._retired_generations
        pins = self._pinned.get(use.generation_id, ())
        earliest_start = self._earliest_starts.get(generation["edition_id"])
        listed = self._listed.get(use.generation_id, ())
        if use.is_current and not is_given_up:
            return (
                "it is current" if use.generation_id == place.generation_id else "current output shares its files"
            )
        if use.is_current and (pins or earliest_start is not None):
            return "a running task reads its generation"
        if use.replaced_at is None:
            return None
        if use.replaced_at > self._before:
            return "it was replaced not long ago"
        if any(map(use.was_read_at, pins)):
            return "a running task reads it as it was"
        if any(map(use.was_read_at, self._to_compare.get(use.generation_id, ()))):
            return "a job has yet to find out that it was replaced"
        if earliest_start is not None and earliest_start < use.replaced_at:
            return "its job has been running since before it was replaced"  # And may compare rows with it.
        if any(revision >= use.first if use.is_current else use.was_read_at(revision) for revision in listed):
            self.listing_datasets.add(generation["dataset_id"])
            return "a snapshot of its table shows it; the snapshot is dropped first, so collect again"
        return None


def _mark_collected(tx: Tx, evidence: _Evidence, deleted: Collection[_Place]) -> None:
    """Mark the commits that name deleted files, and the generations of which such commits are current."""
    for some in batches(
        {(each.task_id, each.attempt, each.generation_id) for each in deleted if each in evidence.uses}
    ):
        by_task = _commits.c.task_id.in_({task_id for task_id, _, _ in some})
        own = sa.select(_commits.c.revision).where(by_task, sa.tuple_(*_WRITER).in_(some))
        shared = sa.select(_loans.c.revision).where(_loans.c.made_by.in_(own))
        unmarked = sa.and_(_commits.c.collected_at.is_(None), _commits.c.revision.in_(own.union_all(shared)))
        tx.execute(sa.update(_commits).where(unmarked).values(collected_at=tx.now))
    for some in batches(
        sorted({generation for each in deleted for generation in evidence.current_generations(each)})
    ):
        table = schema.generation_rows
        unmarked = sa.and_(table.c.id.in_(some), table.c.collected_at.is_(None))
        tx.execute(sa.update(table).where(unmarked).values(collected_at=tx.now))


def _load_attempts(tx: Tx, pairs: Collection[tuple[str, int]]) -> dict[tuple[str, int], sa.RowMapping]:
    columns = (_attempts.c.task_id, _attempts.c.attempt, _attempts.c.lease_id, _attempts.c.ended_at)
    query = sa.select(*columns, _tasks.c.late_lease_id).join(_tasks, _tasks.c.id == _attempts.c.task_id)
    query = query.where(_attempts.c.attempt.in_({attempt for _, attempt in pairs}))
    tasks = batches(sorted({task_id for task_id, _ in pairs}))
    rows = [row for some in tasks for row in tx.all(query.where(_attempts.c.task_id.in_(some)))]
    return {(row["task_id"], row["attempt"]): row for row in rows}


def _purged_places(tx: Tx, unknown: Sequence[_Place]) -> set[_Place]:
    """Return the places of attempts that were purged: with their task, or with all of a generation that was given up.

    What is merely unknown may have been written after a backup that this state was restored from.
    """
    purged, collected = set[str](), set[str]()
    for some in batches(unknown):
        table, generations = schema.purged_tasks, [each.generation_id for each in some]
        purged.update(
            tx.execute(sa.select(table.c.id).where(table.c.id.in_([each.task_id for each in some]))).scalars()
        )
        given_up = sa.and_(_generations.c.id.in_(generations), _generations.c.collected_at.is_not(None))
        collected.update(tx.execute(sa.select(_generations.c.id).where(given_up)).scalars())
    return {each for each in unknown if each.task_id in purged or each.generation_id in collected}


def _load_uses(tx: Tx, places: Collection[_Place]) -> dict[_Place, list[_Use]]:
    """Return the commits that name files of the places: those of their attempts, and those that share the files."""
    by_writer = {(each.task_id, each.attempt, each.generation_id): each for each in places}
    borrower = _commits.alias("borrower")
    shared = _commits.join(_loans, _loans.c.made_by == _commits.c.revision)
    queries = (
        _usage_query(_commits, _commits),
        _usage_query(borrower, shared.join(borrower, borrower.c.revision == _loans.c.revision)),
    )
    uses: dict[_Place, list[_Use]] = {}
    attempts = {each.attempt for each in places}
    for some in batches(sorted({each.task_id for each in places})):
        # This may find too many, but by the index, which SQLite cannot use for pairs.
        these = sa.and_(_commits.c.task_id.in_(some), _commits.c.attempt.in_(attempts))
        for task_id, attempt, generation, *use in (
            row for query in queries for row in tx.execute(query.where(these))
        ):
            place = by_writer.get((task_id, attempt, generation))
            if place is not None:
                uses.setdefault(place, []).append(_Use(*use))
    return uses


def _usage_query(user: sa.FromClause, joined: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
    """Select the fields of ``_Use``, after those of the attempt that wrote the files."""
    replacer = _commits.alias("replacer")
    return (
        sa.select(
            *_WRITER,
            user.c.generation_id,
            sa.func.count() > sa.func.count(user.c.replaced_by),
            sa.func.min(user.c.revision),
            sa.func.max(user.c.replaced_by),
            sa.func.max(replacer.c.committed_at),
        )
        .select_from(joined.outerjoin(replacer, replacer.c.revision == user.c.replaced_by))
        .group_by(*_WRITER, user.c.generation_id)
    )


def _load_generations(tx: Tx, ids: Collection[str]) -> dict[str, sa.RowMapping]:
    rows: dict[str, sa.RowMapping] = {}
    for some in batches(sorted(ids)):
        rows |= {row["id"]: row for row in tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))}
    return rows


def _active_tasks(tx: Tx) -> list[sa.RowMapping]:
    """Return the tasks that may still read their pinned inputs and write their outputs."""
    query = sa.select(_tasks.c.id, _tasks.c.edition_id, _tasks.c.started_at)
    return [*tx.all(query.where(scans.running())), *tx.all(query.where(_tasks.c.late_lease_id.is_not(None)))]


def _pinned_revisions(tx: Tx, tasks: Sequence[sa.RowMapping], generations: Collection[str]) -> dict[str, set[int]]:
    """Return the revisions of each generation that the tasks read. Queried by task: a generation has far more reads."""
    revisions: dict[str, set[int]] = {}
    query = sa.select(_inputs.c.generation_id, _inputs.c.revision)
    for some in batches(row["id"] for row in tasks):
        for generation, revision in tx.execute(query.where(_inputs.c.task_id.in_(some)).distinct()):
            if generation in generations and revision is not None:
                revisions.setdefault(generation, set()).add(revision)
    return revisions


def _revisions_to_compare(tx: Tx, generations: Collection[str]) -> dict[str, set[int]]:
    """Return the revisions of each generation that PerChange jobs will compare with what is there now."""
    live = topology.load(tx)
    editions = [id_ for id_, job in live.jobs.items() if job.job.execution_strategy is Strategy.PER_CHANGE]
    revisions: dict[str, set[int]] = {}
    cursors = schema.cursors
    for some in batches(sorted(editions)):
        query = sa.select(cursors.c.generation_id, cursors.c.value).where(cursors.c.edition_id.in_(some))
        for generation, revision in tx.execute(query):
            if generation in generations:
                revisions.setdefault(generation, set()).add(revision)
    return revisions


def _earliest_starts(tasks: Sequence[sa.RowMapping]) -> dict[str, datetime]:
    """Return by edition when the first of the tasks was started."""
    starts: dict[str, datetime] = {}
    for row in tasks:
        if row["started_at"] is not None:
            edition = row["edition_id"]
            starts[edition] = min(row["started_at"], starts.get(edition, row["started_at"]))
    return starts


def _retired_generations(tx: Tx, generations: Collection[str], before: datetime) -> set[str]:
    """Return the generations that neither a live version nor the target of a rollback has had since ``before``."""
    pointers, dags, datasets = schema.version_generations, schema.dags, schema.datasets
    needed: set[str] = set()
    recent: set[str] = set()
    for some in batches(sorted(generations)):
        query = (
            sa.select(pointers.c.generation_id)
            .join(_versions, _versions.c.id == pointers.c.version_id)
            .join(dags, dags.c.name == _versions.c.dag)
            .where(
                pointers.c.generation_id.in_(some),
                sa.or_(
                    _versions.c.status.in_(sorted(LIVE)),
                    _versions.c.id == dags.c.previous_version_id,
                ),
            )
        )
        needed.update(tx.execute(query).scalars())
        changed = (
            sa.select(_generations.c.id)
            .join(datasets, datasets.c.id == _generations.c.dataset_id)
            .join(dags, dags.c.name == datasets.c.dag)
            .where(_generations.c.id.in_(some), dags.c.updated_at > before)
        )
        recent.update(tx.execute(changed).scalars())
    return set(generations) - needed - recent
