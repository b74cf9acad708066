"""Which files nobody needs any more.

Every attempt writes below a prefix of its own, so it is attempts that are judged:

    kept    those under way, and those that timed out and may still finish
    kept    what ended, was rejected or was replaced within the retention
    kept    what stands in a generation, and what a running task may still read as it was
    gone    the rest: attempts that committed nothing, and what was replaced long ago

Files are those of all commits that name them: of the attempt's own, and of those that only pass them on (``loans``).

An answer "gone" never becomes untrue: nothing of what it rests on can be undone. The commits are marked, and versions
that have them can be read no more. What stands in a generation that no live version has is given up only on request
(``retired``). The generation is marked then, too, and from that moment no version can have it again: deploying or
going back to one is refused.

Manifests are files of ours as well, and judged by ``manifests``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.garbage import Judged, JudgeRequest
from qo.core.pipeline.topology import LIVE
from qo.dispatcher.commits.retention import COLLECTION_LOCK
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.views import manifests

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PREFIX = re.compile(
    rf"(?P<dataset>{_ID})/(?P<generation>{_ID})/(?P<task>{_ID})/(?P<attempt>[1-9][0-9]{{0,8}})/?\Z"
)

_attempts, _tasks, _commits, _loans = schema.attempts, schema.tasks, schema.commits, schema.loans
_generations, _inputs, _versions = schema.generations, schema.task_inputs, schema.dag_versions
_MAKER = (_commits.c.task_id, _commits.c.attempt, _commits.c.generation_id)


def judge(tx: Tx, wanted: JudgeRequest) -> list[Judged]:
    """One verdict for each prefix, in order. Unless it is dry, in a transaction that writes."""
    if wanted.retired and not wanted.dry_run:
        topology.hold(tx)  # Nobody deploys or goes back while we look.
    if not wanted.dry_run:
        tx.hold(COLLECTION_LOCK)  # Two collections mark the same rows, each in an order of its own.
        tx.require_durable()  # The files go when the verdict is known: nothing may forget that it was given.
    before = tx.now - timedelta(seconds=wanted.keep_s)
    places = {text: place for text in wanted.prefixes if (place := _place(text)) is not None}
    known = _Known(tx, set(places.values()), before, retired=wanted.retired)
    said = manifests.judge(tx, wanted.prefixes, before)
    for text, place in places.items():
        kept = known.kept(place)
        said[text] = (kept is None, kept or known.why(place))
    if not wanted.dry_run:
        _give_up(tx, known, {place for text, place in places.items() if said[text][0]})
    unknown = (False, "neither the prefix of an attempt nor a manifest")
    verdicts = [(text, *said.get(text, unknown)) for text in wanted.prefixes]
    return [Judged(prefix=text, gone=gone, why=why) for text, gone, why in verdicts]


@dataclass(frozen=True, slots=True)
class _Place:
    dataset_id: str
    generation_id: str
    task_id: str
    attempt: int


def _place(text: str) -> _Place | None:
    match = PREFIX.match(text)
    return match and _Place(match["dataset"], match["generation"], match["task"], int(match["attempt"]))


@dataclass(frozen=True, slots=True)
class _Use:
    """The commits to one generation that name files of a place. A stream has made very many: they are not told apart,
    so what is kept for one of them is kept for all."""

    generation_id: str
    stands: bool  # One of them does.
    first: int
    replaced_by: int | None  # The last of those that replaced some.
    replaced_at: datetime | None

    def was_read_at(self, revision: int) -> bool:
        return self.replaced_by is not None and self.first <= revision < self.replaced_by


class _Known:
    """All that the verdicts about some prefixes rest on."""

    def __init__(self, tx: Tx, places: Collection[_Place], before: datetime, *, retired: bool) -> None:
        self._before = before
        self._attempts = _attempts_of(tx, {(each.task_id, each.attempt) for each in places})
        # Of those under way it matters not what they have committed.
        ended = {each for each in places if self._ended(each) is None}
        self.uses = _uses_of(tx, ended)
        used = {use.generation_id for uses in self.uses.values() for use in uses}
        self._generations = _generations_of(tx, {each.generation_id for each in places} | used)
        at_work = _at_work(tx)
        self._pins = _pins(tx, at_work, used)
        self._working = _working(at_work)
        self._retired = _retired(tx, used, before) if retired else set[str]()

    def kept(self, place: _Place) -> str | None:
        """Why it must stay, or None."""
        generation = self._generations.get(place.generation_id)
        if generation is None or generation["dataset_id"] != place.dataset_id:
            return "nobody here knows of it"
        reasons = [self._ended(place), *(self._used(place, use) for use in self.uses.get(place, ()))]
        return next((each for each in reasons if each is not None), None)

    def standing(self, place: _Place) -> set[str]:
        """The generations in which its files stand."""
        return {use.generation_id for use in self.uses.get(place, ()) if use.stands}

    def why(self, place: _Place) -> str:
        """Of one that may go."""
        if place not in self.uses:
            return "the attempt committed nothing"
        return "no version can have its generation" if self.standing(place) else "it was replaced long ago"

    def _ended(self, place: _Place) -> str | None:
        """Why it must stay, whatever it has committed."""
        attempt = self._attempts.get((place.task_id, place.attempt))
        if attempt is None:
            return "nobody here knows of it"
        if attempt["ended_at"] is None:
            return "the attempt is under way"
        if attempt["late_lease_id"] == attempt["lease_id"]:
            return "the attempt timed out and may still finish"
        return "the attempt ended not long ago" if attempt["ended_at"] > self._before else None

    def _used(self, place: _Place, use: _Use) -> str | None:
        generation = self._generations[use.generation_id]
        given_up = generation["collected_at"] is not None or use.generation_id in self._retired
        pins = self._pins.get(use.generation_id, ())
        working = self._working.get(generation["edition_id"])
        if use.stands and not given_up:
            return "it stands" if use.generation_id == place.generation_id else "what passes it on stands"
        if use.stands and (pins or working is not None):
            return "a task at work reads its generation"
        if use.replaced_at is None:
            return None
        if use.replaced_at > self._before:
            return "it was replaced not long ago"
        if any(map(use.was_read_at, pins)):
            return "a task at work reads it as it was"
        if working is not None and working < use.replaced_at:
            return "its job is at work since before it was replaced"  # And may compare rows with it.
        return None


def _give_up(tx: Tx, known: _Known, gone: Collection[_Place]) -> None:
    """What names files that are gone can be read no more, and where it stands, no version can have it any more."""
    for some in batches({(each.task_id, each.attempt, each.generation_id) for each in gone if each in known.uses}):
        by_task = _commits.c.task_id.in_({task_id for task_id, _, _ in some})
        made = sa.select(_commits.c.revision).where(by_task, sa.tuple_(*_MAKER).in_(some))
        lent = sa.select(_loans.c.revision).where(_loans.c.made_by.in_(made))
        fresh = sa.and_(_commits.c.collected_at.is_(None), _commits.c.revision.in_(made.union_all(lent)))
        tx.execute(sa.update(_commits).where(fresh).values(collected_at=tx.now))
    for some in batches(sorted({generation for each in gone for generation in known.standing(each)})):
        fresh = sa.and_(_generations.c.id.in_(some), _generations.c.collected_at.is_(None))
        tx.execute(sa.update(_generations).where(fresh).values(collected_at=tx.now))


def _attempts_of(tx: Tx, wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], sa.RowMapping]:
    columns = (_attempts.c.task_id, _attempts.c.attempt, _attempts.c.lease_id, _attempts.c.ended_at)
    query = sa.select(*columns, _tasks.c.late_lease_id).join(_tasks, _tasks.c.id == _attempts.c.task_id)
    query = query.where(_attempts.c.attempt.in_({attempt for _, attempt in wanted}))
    tasks = batches(sorted({task_id for task_id, _ in wanted}))
    rows = [row for some in tasks for row in tx.all(query.where(_attempts.c.task_id.in_(some)))]
    return {(row["task_id"], row["attempt"]): row for row in rows}


def _uses_of(tx: Tx, places: Collection[_Place]) -> dict[_Place, list[_Use]]:
    """Who names their files: the commits of their attempts, and those that borrowed from these."""
    by_maker = {(each.task_id, each.attempt, each.generation_id): each for each in places}
    borrower = _commits.alias("borrower")
    lent = _commits.join(_loans, _loans.c.made_by == _commits.c.revision)
    queries = (
        _summed(_commits, _commits),
        _summed(borrower, lent.join(borrower, borrower.c.revision == _loans.c.revision)),
    )
    found: dict[_Place, list[_Use]] = {}
    attempts = {each.attempt for each in places}
    for some in batches(sorted({each.task_id for each in places})):
        # Some too many may be found, but by the index: SQLite has no way to use it for pairs.
        these = sa.and_(_commits.c.task_id.in_(some), _commits.c.attempt.in_(attempts))
        for task_id, attempt, generation, *use in (
            row for query in queries for row in tx.execute(query.where(these))
        ):
            place = by_maker.get((task_id, attempt, generation))
            if place is not None:
                found.setdefault(place, []).append(_Use(*use))
    return found


def _summed(user: sa.FromClause, joined: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
    """The fields of ``_Use``, behind those of who made the files."""
    replacer = _commits.alias("replacer")
    return (
        sa.select(
            *_MAKER,
            user.c.generation_id,
            sa.func.count() > sa.func.count(user.c.replaced_by),
            sa.func.min(user.c.revision),
            sa.func.max(user.c.replaced_by),
            sa.func.max(replacer.c.committed_at),
        )
        .select_from(joined.outerjoin(replacer, replacer.c.revision == user.c.replaced_by))
        .group_by(*_MAKER, user.c.generation_id)
    )


def _generations_of(tx: Tx, ids: Collection[str]) -> dict[str, sa.RowMapping]:
    found: dict[str, sa.RowMapping] = {}
    for some in batches(sorted(ids)):
        found |= {row["id"]: row for row in tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))}
    return found


def _at_work(tx: Tx) -> list[sa.RowMapping]:
    """Who may still read what was pinned for it, and write what it was given to write."""
    query = sa.select(_tasks.c.id, _tasks.c.edition_id, _tasks.c.started_at)
    return [*tx.all(query.where(scans.running())), *tx.all(query.where(_tasks.c.late_lease_id.is_not(None)))]


def _pins(tx: Tx, at_work: Sequence[sa.RowMapping], generations: Collection[str]) -> dict[str, set[int]]:
    """The revisions of each generation that they read. By task: of what a generation was read for there is no end."""
    found: dict[str, set[int]] = {}
    query = sa.select(_inputs.c.generation_id, _inputs.c.revision)
    for some in batches(row["id"] for row in at_work):
        for generation, revision in tx.execute(query.where(_inputs.c.task_id.in_(some)).distinct()):
            if generation in generations and revision is not None:
                found.setdefault(generation, set()).add(revision)
    return found


def _working(at_work: Sequence[sa.RowMapping]) -> dict[str, datetime]:
    """By edition, since when the first of them is."""
    found: dict[str, datetime] = {}
    for row in at_work:
        if row["started_at"] is not None:
            edition = row["edition_id"]
            found[edition] = min(row["started_at"], found.get(edition, row["started_at"]))
    return found


def _retired(tx: Tx, generations: Collection[str], before: datetime) -> set[str]:
    """Those that no live version has, nor the one that a rollback goes to, and that since before then."""
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
        moved = (
            sa.select(_generations.c.id)
            .join(datasets, datasets.c.id == _generations.c.dataset_id)
            .join(dags, dags.c.name == datasets.c.dag)
            .where(_generations.c.id.in_(some), dags.c.updated_at > before)
        )
        recent.update(tx.execute(moved).scalars())
    return set(generations) - needed - recent
