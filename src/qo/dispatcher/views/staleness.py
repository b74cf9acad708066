"""Staleness: which committed data was made from inputs that have changed since.

The inputs of a task are pinned when it is claimed (``attempts.pins``). A current commit is stale if its task, claimed
now, would read something else from one of its inputs:

    partition   the partition was committed again since, or is new since
    whole       something was committed to the generation since
    cursor      a segment within the range was committed or replaced since
    any         another generation of the dataset is current now (inputs that other DAGs write)

This holds for triggering and for side inputs. Data of editions without a live version never counts as stale, because
nobody remakes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.dataset import StaleCount, StaleInput
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.views import changed_inputs
from qo.dispatcher.views.changed_inputs import Change

_SUBJECT = ("dataset_id", "generation_id", "partition_key", "start", "end", "attributes")
COUNT_MAX = 1_000  # A count of stale partitions stops there, …
SCAN_MAX = 1_000  # … or after this many partitions, oldest first: these are the likeliest to be stale.

_commits, _tasks, _pins, _partitions = schema.commits, schema.tasks, schema.task_inputs, schema.partitions


@dataclass(frozen=True, slots=True)
class StaleWork:
    """A current commit that is stale, the subject of its task, and one change that makes it stale."""

    output_revision: int
    dataset_id: str | None  # Of the input that triggered the task.
    generation_id: str | None
    partition_key: str | None
    start: int | None
    end: int | None
    attributes: Mapping[str, Any] | None
    changed_generation: str
    changed_revision: int


def live_writer(tx: Tx, live: Topology, generation_id: str) -> LiveJob | None:
    """Return the live job that writes a generation; None if no live version has it."""
    table = schema.generations
    edition = tx.value(sa.select(table.c.edition_id).where(table.c.id == generation_id))
    return live.jobs.get(edition or "")


def stale_partitions(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str]
) -> dict[str, list[Change]]:
    """Return the changed inputs of each stale one of these partitions, by key."""
    changes: dict[str, list[Change]] = {}
    inputs = changed_inputs.load_inputs(tx, live, job)
    for some in batches(keys):
        query = sa.select(_commits.c.partition_key, _commits.c.task_id).where(_is_current(generation_id, some))
        commits = [(key, task) for key, task in tx.execute(query)]
        changes |= _by_label(commits, changed_inputs.find_changes(tx, inputs, [task for _, task in commits]))
    return changes


def stale_segment(tx: Tx, live: Topology, job: LiveJob, revision: int) -> list[Change]:
    """Return the changed inputs of a commit that is not a partition."""
    query = sa.select(_commits.c.task_id).where(_commits.c.revision == revision, _commits.c.replaced_by.is_(None))
    task = tx.value(query)
    if task is None:
        return []
    changes = changed_inputs.find_changes(tx, changed_inputs.load_inputs(tx, live, job), [task])
    return _by_label([(revision, task)], changes).get(revision, [])


def count_stale(tx: Tx, live: Topology, generation: Mapping[Any, Any]) -> StaleCount | None:
    """Count the stale partitions of a generation (given by its row), within the bounds above.

    Returns None if no live version writes it.
    """
    job = live.jobs.get(generation["edition_id"])
    if job is None:
        return None
    if not job.inputs:
        return StaleCount(partitions=0)
    oldest = (
        sa.select(_partitions.c.partition_key)
        .where(_partitions.c.generation_id == generation["id"])
        .order_by(_partitions.c.revision)
        .limit(SCAN_MAX)
    )
    count = 0
    for some in batches(tx.execute(oldest).scalars()):
        count += len(stale_partitions(tx, live, job, generation["id"], some))
        if count > COUNT_MAX:
            break
    complete = count <= COUNT_MAX and generation["partitions"] <= SCAN_MAX
    return StaleCount(partitions=min(count, COUNT_MAX), at_least=not complete)


def stale_work(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str], positions: Collection[int]
) -> list[StaleWork]:
    """Return the current commits of these partitions that these inputs have made stale, oldest first."""
    inputs = changed_inputs.load_inputs(tx, live, job, positions)
    stale: list[tuple[int, int, StaleWork]] = []
    for some in batches(keys):
        query = sa.select(_commits.c.revision, _commits.c.task_id).where(_is_current(generation_id, some))
        made_by: dict[int, str] = {revision: task for revision, task in tx.execute(query)}
        changes = changed_inputs.find_changes(tx, inputs, made_by.values())
        subjects = _subjects(tx, changes)
        stale += [
            (revision, change.position, _stale_work(revision, subjects[task], change))
            for revision, task in made_by.items()
            for change in changes.get(task, ())
            if task in subjects
        ]
    return [work for _, _, work in sorted(stale, key=lambda each: each[:2])]


def _subjects(tx: Tx, task_ids: Iterable[str]) -> dict[str, sa.RowMapping]:
    subjects: dict[str, sa.RowMapping] = {}
    for some in batches(sorted(task_ids)):
        columns = (_tasks.c.id, *(_tasks.c[name] for name in _SUBJECT))
        subjects |= {row["id"]: row for row in tx.all(sa.select(*columns).where(_tasks.c.id.in_(some)))}
    return subjects


def _stale_work(revision: int, subject: sa.RowMapping, change: Change) -> StaleWork:
    return StaleWork(
        output_revision=revision,
        changed_generation=change.generation_id,
        changed_revision=change.revision or 0,
        **{name: subject[name] for name in _SUBJECT},
    )


def stale_readers(
    tx: Tx, live: Topology, job: LiveJob, task_ids: Iterable[str], positions: Collection[int]
) -> set[str]:
    """Return those claimed tasks of the job that have read an outdated state of one of these inputs."""
    inputs = changed_inputs.load_inputs(tx, live, job, positions)
    return set(changed_inputs.find_changes(tx, inputs, task_ids))


def reads_whole(tx: Tx, generation_id: str, keys: Iterable[str], positions: Collection[int]) -> set[int]:
    """Return the positions of inputs that some of these partitions were made from as a whole."""
    whole: set[int] = set()
    for some in batches(keys):
        query = (
            sa.select(_pins.c.position)
            .join(_commits, _commits.c.task_id == _pins.c.task_id)
            .where(
                _is_current(generation_id, some),
                _pins.c.position.in_(sorted(positions)),
                _pins.c.partition_key == "",
                _pins.c.cursor_upto.is_(None),
            )
        )
        whole.update(tx.execute(query.distinct()).scalars())
    return whole


def explain(
    tx: Tx, changes_by_key: Mapping[str, Sequence[Change]], labels: Mapping[str, str]
) -> dict[str, list[StaleInput]]:
    """Describe changes in words, by the same keys. ``labels``: the names of the datasets that the job reads."""
    changes = [each for several in changes_by_key.values() for each in several]
    last = _last_commits(tx, {each.revision for each in changes if each.revision is not None})
    return {
        key: [_reason(each, labels.get(each.dataset_id, each.dataset_id), last) for each in several]
        for key, several in changes_by_key.items()
    }


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """The last change of an input."""

    partition_key: str | None
    cursor: int | None
    again: bool  # It replaced an earlier commit.


def _last_commits(tx: Tx, revisions: Collection[int]) -> dict[int, _LastCommit]:
    commits: dict[int, _LastCommit] = {}
    for some in batches(sorted(revisions)):
        replacing = sa.select(_commits.c.replaced_by).where(_commits.c.replaced_by.in_(some))
        again = set(tx.execute(replacing.distinct()).scalars())
        query = sa.select(_commits.c.revision, _commits.c.partition_key, _commits.c.cursor)
        for revision, key, cursor in tx.execute(query.where(_commits.c.revision.in_(some))):
            commits[revision] = _LastCommit(key, cursor, revision in again)
    return commits


def _reason(change: Change, label: str, commits: Mapping[int, _LastCommit]) -> StaleInput:
    last = commits.get(change.revision or 0)
    key = change.partition_key if last is None else last.partition_key
    return StaleInput(
        input=change.name,
        dataset=label,
        other_generation=change.other_generation,
        partition_key=key,
        read_revision=change.read_revision,
        revision=change.revision,
        text=f"{change.name} has changed since ({_describe_change(change, label, last)})",
    )


def _describe_change(change: Change, label: str, last: _LastCommit | None) -> str:
    if change.other_generation:
        return f"another generation of {label} is current" if change.read_revision is not None else "it was empty"
    if last is None:
        return f"{label} is at revision {change.revision}"
    what = last.partition_key if last.partition_key is not None else f"cursor {last.cursor}"
    again = " again" if last.again else ""
    return f"{what} was committed{again} as revision {change.revision}"


def _is_current(generation_id: str, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        _commits.c.generation_id == generation_id,
        _commits.c.partition_key.in_(keys),
        _commits.c.replaced_by.is_(None),
    )


def _by_label(
    commits: Iterable[tuple[Any, str]], changes: Mapping[str, Sequence[Change]]
) -> dict[Any, list[Change]]:
    """Return one change per input, in order of position. If several tasks have appended to a partition, one stale
    commit makes the whole partition stale."""
    by_label: dict[Any, dict[int, Change]] = {}
    for label, task in commits:
        for change in changes.get(task, ()):
            of_label = by_label.setdefault(label, {})
            earlier = of_label.get(change.position)
            if earlier is None or (earlier.revision or 0) < (change.revision or 0):
                of_label[change.position] = change
    return {label: [of_label[at] for at in sorted(of_label)] for label, of_label in sorted(by_label.items())}
