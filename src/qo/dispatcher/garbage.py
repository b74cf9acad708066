"""Which files nobody needs any more.

Every attempt writes below a prefix of its own, so it is attempts that are judged:

    kept    those under way, and those that timed out and may still finish
    kept    what ended, was rejected or was replaced within the retention
    kept    what stands in a generation, and what a running task may still read as it was
    gone    the rest: attempts that committed nothing, and what was replaced long ago

An answer "gone" never becomes untrue: nothing of what it rests on can be undone. What stands in a generation that no
live version has is given up only on request (``retired``). The generation is marked then, and from that moment no
version can have it again: deploying or going back to one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.flow.topology import LIVE
from qo.core.task import Status
from qo.dispatcher import topology
from qo.dispatcher.contract.garbage import Judged, JudgeRequest
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.errors import Refused

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PREFIX = re.compile(
    rf"(?P<dataset>{_ID})/(?P<generation>{_ID})/(?P<task>{_ID})/(?P<attempt>[1-9][0-9]{{0,8}})/?\Z"
)

_attempts, _tasks, _commits = schema.attempts, schema.tasks, schema.commits
_generations, _inputs, _versions = schema.generations, schema.task_inputs, schema.dag_versions
# Whoever may still read what was pinned for it, and write what it was given to write.
_AT_WORK = sa.or_(_tasks.c.status == Status.RUNNING, _tasks.c.late_lease_id.is_not(None))


def judge(tx: Tx, wanted: JudgeRequest) -> list[Judged]:
    """One verdict for each prefix, in order. With ``retired``, and not dry, in a transaction that writes."""
    if wanted.retired and not wanted.dry_run:
        topology.hold(tx)  # Nobody deploys or goes back while we look.
    parsed = {text: PREFIX.match(text) for text in wanted.prefixes}
    places = [_Place(m["dataset"], m["generation"], m["task"], int(m["attempt"])) for m in parsed.values() if m]
    known = _Known(tx, places, tx.now - timedelta(seconds=wanted.keep_s), retired=wanted.retired)
    verdicts: list[Judged] = []
    given_up: set[str] = set()
    for text, match in ((each, parsed[each]) for each in wanted.prefixes):
        if match is None:
            verdicts.append(Judged(prefix=text, gone=False, why="not the prefix of an attempt"))
            continue
        place = _Place(match["dataset"], match["generation"], match["task"], int(match["attempt"]))
        kept = known.kept(place)
        if kept is None and known.stands(place):
            given_up.add(place.generation_id)
        verdicts.append(Judged(prefix=text, gone=kept is None, why=kept or known.why(place)))
    if given_up and not wanted.dry_run:
        fresh = sa.and_(_generations.c.id.in_(given_up), _generations.c.collected_at.is_(None))
        tx.execute(sa.update(_generations).where(fresh).values(collected_at=tx.now))
    return verdicts


def require_kept(tx: Tx, generations: Iterable[str], what: str) -> None:
    """Raises Refused if the files of one of them were given up."""
    for some in batches(sorted(set(generations))):
        gone = tx.one(
            sa.select(schema.datasets.c.job)
            .join(_generations, _generations.c.dataset_id == schema.datasets.c.id)
            .where(_generations.c.id.in_(some), _generations.c.collected_at.is_not(None))
            .order_by(schema.datasets.c.job)
            .limit(1)
        )
        if gone is not None:
            raise Refused(
                f"{what} has the job {gone['job']!r} as it once was, and the files that it made were collected: write "
                "another 'code' for it, and it is built anew"
            )


@dataclass(frozen=True, slots=True)
class _Place:
    dataset_id: str
    generation_id: str
    task_id: str
    attempt: int


class _Known:
    """All that the verdicts about some prefixes rest on."""

    def __init__(self, tx: Tx, places: Sequence[_Place], before: datetime, *, retired: bool) -> None:
        self._before = before
        tasks = {each.task_id for each in places}
        self._attempts = _attempts_of(tx, tasks)
        self._commits = _commits_of(tx, tasks)
        self._generations = _generations_of(tx, {each.generation_id for each in places})
        self._replaced_at = _when(tx, {row["replaced_by"] for rows in self._commits.values() for row in rows})
        self._pins = _pins(tx, self._generations)
        self._working = _working(tx, {row["edition_id"] for row in self._generations.values()})
        self._retired = _retired(tx, self._generations, before) if retired else set[str]()

    def kept(self, place: _Place) -> str | None:
        """Why it must stay, or None."""
        attempt = self._attempts.get((place.task_id, place.attempt))
        generation = self._generations.get(place.generation_id)
        if attempt is None or generation is None or generation["dataset_id"] != place.dataset_id:
            return "nobody here knows of it"
        if attempt["ended_at"] is None:
            return "the attempt is under way"
        if attempt["late_lease_id"] == attempt["lease_id"]:
            return "the attempt timed out and may still finish"
        if attempt["ended_at"] > self._before:
            return "the attempt ended not long ago"
        for commit in self._of(place):
            kept = self._committed(place, generation, commit)
            if kept is not None:
                return kept
        return None

    def stands(self, place: _Place) -> bool:
        return any(each["replaced_by"] is None for each in self._of(place))

    def why(self, place: _Place) -> str:
        """Of one that may go."""
        if not self._of(place):
            return "the attempt committed nothing"
        return "no version can have its generation" if self.stands(place) else "it was replaced long ago"

    def _committed(self, place: _Place, generation: sa.RowMapping, commit: sa.RowMapping) -> str | None:
        given_up = generation["collected_at"] is not None or place.generation_id in self._retired
        pins = self._pins.get(place.generation_id, ())
        working = self._working.get(generation["edition_id"])
        if commit["replaced_by"] is None:
            if not given_up:
                return "it stands"
            return "a task at work reads its generation" if pins or working is not None else None
        replaced_at = self._replaced_at[commit["replaced_by"]]
        if replaced_at > self._before:
            return "it was replaced not long ago"
        if any(commit["revision"] <= pin < commit["replaced_by"] for pin in pins):
            return "a task at work reads it as it was"
        if working is not None and working < replaced_at:
            return "its job is at work since before it was replaced"  # And may compare rows with it.
        return None

    def _of(self, place: _Place) -> list[sa.RowMapping]:
        own = self._commits.get((place.task_id, place.attempt), [])
        return [each for each in own if each["generation_id"] == place.generation_id]


def _attempts_of(tx: Tx, tasks: Collection[str]) -> dict[tuple[str, int], sa.RowMapping]:
    query = sa.select(
        _attempts.c.task_id,
        _attempts.c.attempt,
        _attempts.c.lease_id,
        _attempts.c.ended_at,
        _tasks.c.late_lease_id,
    ).join(_tasks, _tasks.c.id == _attempts.c.task_id)
    rows = [row for some in batches(sorted(tasks)) for row in tx.all(query.where(_attempts.c.task_id.in_(some)))]
    return {(row["task_id"], row["attempt"]): row for row in rows}


def _commits_of(tx: Tx, tasks: Collection[str]) -> dict[tuple[str, int], list[sa.RowMapping]]:
    columns = (_commits.c.task_id, _commits.c.attempt, _commits.c.generation_id)
    query = sa.select(*columns, _commits.c.revision, _commits.c.replaced_by)
    found: dict[tuple[str, int], list[sa.RowMapping]] = {}
    for some in batches(sorted(tasks)):
        for row in tx.all(query.where(_commits.c.task_id.in_(some))):
            found.setdefault((row["task_id"], row["attempt"]), []).append(row)
    return found


def _generations_of(tx: Tx, ids: Collection[str]) -> dict[str, sa.RowMapping]:
    found: dict[str, sa.RowMapping] = {}
    for some in batches(sorted(ids)):
        found |= {row["id"]: row for row in tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))}
    return found


def _when(tx: Tx, revisions: Collection[int | None]) -> dict[int, datetime]:
    found: dict[int, datetime] = {}
    for some in batches(sorted(each for each in revisions if each is not None)):
        query = sa.select(_commits.c.revision, _commits.c.committed_at).where(_commits.c.revision.in_(some))
        found |= {row.revision: row.committed_at for row in tx.execute(query)}
    return found


def _pins(tx: Tx, generations: Collection[str]) -> dict[str, set[int]]:
    """The revisions of each generation that tasks at work read."""
    found: dict[str, set[int]] = {}
    for some in batches(sorted(generations)):
        query = (
            sa.select(_inputs.c.generation_id, _inputs.c.revision)
            .join(_tasks, _tasks.c.id == _inputs.c.task_id)
            .where(_inputs.c.generation_id.in_(some), _inputs.c.revision.is_not(None), _AT_WORK)
        )
        for row in tx.execute(query.distinct()):
            found.setdefault(row.generation_id, set()).add(row.revision)
    return found


def _working(tx: Tx, editions: Collection[str]) -> dict[str, datetime]:
    """Since when the first of the tasks of an edition that are at work is so."""
    found: dict[str, datetime] = {}
    for some in batches(sorted(editions)):
        query = sa.select(_tasks.c.edition_id, sa.func.min(_tasks.c.started_at)).where(
            _tasks.c.edition_id.in_(some), _AT_WORK, _tasks.c.started_at.is_not(None)
        )
        found |= {edition: since for edition, since in tx.execute(query.group_by(_tasks.c.edition_id))}
    return found


def _retired(tx: Tx, generations: Mapping[str, Any], before: datetime) -> set[str]:
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
