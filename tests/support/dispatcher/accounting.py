"""The books: whether the counts of a dataset agree with its events and deliveries, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.event import CountsAnswer, ReaderCounts
from qo.dispatcher.events import tallies
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared

STATES = frozenset({"pending", "routed", "superseded", "filtered"})
OUTCOMES = frozenset({"consumed", "merged", "superseded", "filtered", "pending"})

Counts = Mapping[str, Mapping[str, int]]

_events, _deliveries = schema.events, schema.deliveries
# Built once: to build a statement takes longer than to carry it out.
_OF_DATASET = sa.bindparam("dataset", type_=sa.String)
_TOTALS = Prepared(
    sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_events.c.fanout), 0)).where(
        _events.c.dataset_id == _OF_DATASET
    )
)
_BY_STATE = Prepared(
    sa.select(sa.literal(tallies.EVENTS).label("edition"), _events.c.state.label("outcome"), sa.func.count())
    .where(_events.c.dataset_id == _OF_DATASET)
    .group_by(_events.c.state)
)
_BY_OUTCOME = Prepared(
    sa.select(_deliveries.c.edition_id, _deliveries.c.outcome, sa.func.count())
    .where(_deliveries.c.dataset_id == _OF_DATASET)
    .group_by(_deliveries.c.edition_id, _deliveries.c.outcome)
)
_TASKLESS = Prepared(
    sa.select(sa.func.count()).where(
        _deliveries.c.dataset_id == _OF_DATASET,
        sa.or_(_deliveries.c.outcome == "consumed", _deliveries.c.outcome == "merged"),
        _deliveries.c.task_id.is_(None),
    )
)


@dataclass(frozen=True, slots=True)
class Books:
    events: int  # How many were received.
    fanout: int  # How many deliveries they should have, by their own account.
    tallied: Counts  # By edition (EVENTS for the events themselves) and state or outcome.
    found: Counts  # The same, counted from the rows.
    problems: tuple[str, ...]  # Empty: everything adds up.


def check(tx: Tx, dataset_id: str) -> Books:
    """Count everything again. Reads all events of the dataset: for tests and for people in doubt."""
    tallied, found = tallies.counts(tx, dataset_id), _found(tx, dataset_id)
    [(total, fanout)] = tx.rows(_TOTALS, {"dataset": dataset_id})
    delivered = sum(sum(by.values()) for edition, by in found.items() if edition != tallies.EVENTS)
    problems = [*_differences(tallied, found)]
    if sum(tallied.get(tallies.EVENTS, {}).values()) != total:
        problems.append(f"{total} events, but the counts add up to something else")
    if delivered != int(fanout):
        problems.append(f"events say {int(fanout)} deliveries, and there are {delivered}")
    [(taskless,)] = tx.rows(_TASKLESS, {"dataset": dataset_id})
    if taskless:
        problems.append(f"{taskless} deliveries were consumed or merged by no task")
    return Books(int(total), int(fanout), tallied, found, tuple(problems))


def counts(tx: Tx, text: str, *, checked: bool = False) -> CountsAnswer:
    """What became of the events of a dataset, in numbers. ``checked``: and whether the rows say the same."""
    ref = datasets.resolve(tx, text)
    live, kept = topology.load(tx), tallies.counts(tx, ref.id)
    editions = sorted(kept.keys() - {tallies.EVENTS})
    names = datasets.jobs_of(tx, editions)
    return CountsAnswer(
        dataset_id=ref.id,
        events=kept.get(tallies.EVENTS, {}),
        readers=[
            ReaderCounts(
                job=".".join(names[each]) if each in names else None,
                edition_id=each,
                live=each in live.jobs,
                deliveries=kept[each],
            )
            for each in editions
        ],
        checked=checked,
        problems=list(check(tx, ref.id).problems) if checked else [],
    )


def _found(tx: Tx, dataset_id: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for query in (_BY_STATE, _BY_OUTCOME):
        for edition, outcome, n in tx.rows(query, {"dataset": dataset_id}):
            found.setdefault(edition, {})[outcome] = n
    return found


def _differences(tallied: Counts, found: Counts) -> list[str]:
    problems: list[str] = []
    for edition in sorted(tallied.keys() | found.keys()):
        ours, theirs = tallied.get(edition, {}), found.get(edition, {})
        unknown = (ours.keys() | theirs.keys()) - (STATES if edition == tallies.EVENTS else OUTCOMES)
        problems += [f"{edition or 'events'}: {word!r} is no state" for word in sorted(unknown)]
        problems += [
            f"{edition or 'events'}: {ours.get(word, 0)} {word} by count, {theirs.get(word, 0)} by rows"
            for word in sorted(ours.keys() | theirs.keys())
            if ours.get(word, 0) != theirs.get(word, 0)
        ]
    return problems
