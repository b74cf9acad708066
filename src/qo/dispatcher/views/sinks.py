"""Sinks: which tables and files follow published datasets, what each is to show, and how far it is.

The books beside a table, and the record beside files, are the truth about them. Loaders report here for people to see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from qo.api.contract.sink import LiveSink, SinkGeneration, SinkReport, SinkState
from qo.core.pipeline.dag import SinkKind
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.sink import Sink
from qo.core.pipeline.topology import VersionStatus
from qo.core.words import plural
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.errors import NotFound

QUIET_S = 60.0  # A loader that was not heard of for so long does not run.

_publications, _marks, _commits = schema.publications, schema.operator_state, schema.commits
_MARK = "sink"
_FOLLOWED = (VersionStatus.ACTIVE, VersionStatus.READY, VersionStatus.STAGED)


def list_sinks(tx: Tx) -> list[LiveSink]:
    """List the sinks of all active versions."""
    rows = tx.all(sa.select(_publications).where(_has_sink()).order_by(_publications.c.name))
    if not rows:
        return []
    live = topology.load(tx)
    generations = _generations(tx, {row["dataset_id"] for row in rows})
    return [
        LiveSink(
            name=row["name"],
            dataset_id=row["dataset_id"],
            **row["sink"],
            epoch=live.epoch,
            current=live.current.get(row["dataset_id"]),
            generations=generations[row["dataset_id"]],
        )
        for row in rows
    ]


def require_generation(tx: Tx, name: str, generation_id: str) -> None:
    """Raise NotFound if there is no such sink, or the generation is not one of its dataset."""
    dataset = tx.value(sa.select(_publications.c.dataset_id).where(_publications.c.name == name, _has_sink()))
    table = schema.generation_rows
    if dataset is None or dataset != tx.value(sa.select(table.c.dataset_id).where(table.c.id == generation_id)):
        raise NotFound(f"no sink {name!r} follows the generation {generation_id!r}: list the sinks again")


def report(tx: Tx, name: str, body: SinkReport) -> None:
    """Store how far a loader has got. Raises NotFound for a sink that does not exist."""
    if tx.value(sa.select(_publications.c.name).where(_publications.c.name == name, _has_sink())) is None:
        raise NotFound(f"there is no sink {name!r}: list the sinks again")
    value = body.model_dump()
    tx.upsert(_marks, {"edition_id": _mark_id(name), "key": _MARK, "value": value, "updated_at": tx.now})


def find_states(tx: Tx, dataset_id: str) -> list[SinkState]:
    """Return how far the sinks of a dataset are."""
    return _read_states(tx, _publications.c.dataset_id == dataset_id)


def find_states_of_dags(tx: Tx, dags: Collection[str]) -> list[SinkState]:
    """Return how far the sinks of pipelines are, as their active versions publish."""
    return _read_states(tx, _publications.c.dag.in_(sorted(dags)))


def _read_states(tx: Tx, which: sa.ColumnElement[bool]) -> list[SinkState]:
    rows = tx.all(sa.select(_publications).where(which, _has_sink()).order_by(_publications.c.name))
    if not rows:
        return []
    serving = topology.load(tx).current
    current = {row["dataset_id"]: serving.get(row["dataset_id"]) for row in rows}
    table = schema.generations
    ids = sorted(each for each in current.values() if each is not None)
    latest = {
        id_: revision
        for id_, revision in tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(ids)))
    }
    marks = _load_marks(tx, [row["name"] for row in rows])
    return [
        _state(
            tx, row, marks.get(row["name"]), generation, latest.get(generation) or 0
        )  # None before its first commit.
        for row in rows
        for generation in [current[row["dataset_id"]]]
    ]


def _state(tx: Tx, row: sa.RowMapping, mark: sa.RowMapping | None, current: str | None, latest: int) -> SinkState:
    content: Mapping[str, Any] = {} if mark is None else mark["value"]
    generation, revision = content.get("generation_id"), content.get("revision", 0)
    loaded = revision if generation == current else 0
    lag_s = _lag_s(tx, current, loaded, latest)
    reported_at = None if mark is None else mark["updated_at"]
    is_current = generation == current and current is not None and revision >= latest
    return SinkState(
        name=row["name"],
        **row["sink"],
        generation_id=generation,
        revision=revision,
        latest=latest,
        is_current=is_current,
        lag_s=lag_s,
        error=content.get("error"),
        reported_at=reported_at,
        text=_sentence(
            row["sink"], content, reported_at, latest, is_current, generation == current, lag_s, tx.now
        ),
    )


def _lag_s(tx: Tx, generation: str | None, loaded: int, latest: int) -> float | None:
    if generation is None or loaded >= latest:
        return None
    missing = sa.select(_commits.c.committed_at).where(
        _commits.c.generation_id == generation, _commits.c.revision > loaded
    )
    oldest = tx.value(missing.order_by(_commits.c.revision).limit(1))
    return None if oldest is None else max(0.0, (tx.now - oldest).total_seconds())


def _sentence(
    sink: Mapping[str, Any],
    content: Mapping[str, Any],
    reported_at: datetime | None,
    latest: int,
    is_current: bool,
    is_serving: bool,
    lag_s: float | None,
    now: datetime,
) -> str:
    target = msgspec.convert(sink, Sink)
    are_files = target.kind is SinkKind.FILES
    is_, shows = ("are", "show") if are_files else ("is", "shows")
    if reported_at is None:
        needed = "sink.directories" if are_files else "sink.databases"
        return f"{target} {'were' if are_files else 'was'} never loaded: run qo sink with the setting {needed}"
    if is_current:
        text = f"{target} {is_} current, as of revision {latest}"
    elif content.get("generation_id") is None:
        text = f"{target} {shows} nothing yet"
    elif not is_serving:
        text = f"{target} still {shows} another version, as of revision {content['revision']}"
    else:
        text = f"{target} {is_} as of revision {content['revision']} of {latest}"
    if lag_s is not None:
        text += f", {plural(round(lag_s), 'second')} behind"
    quiet_s = (now - reported_at).total_seconds()
    if quiet_s > QUIET_S:
        text += f"; no qo sink was heard of for {plural(round(quiet_s), 'second')}"
    return f"{text}; the last try failed: {content['error']}" if content.get("error") else text


def _generations(tx: Tx, datasets: Iterable[str]) -> dict[str, list[SinkGeneration]]:
    """Return the generations that live versions and rollbacks need, by dataset."""
    pointers, versions, dags, table = (
        schema.version_generations,
        schema.dag_versions,
        schema.dags,
        schema.generations,
    )
    by_dataset: dict[str, dict[str, SinkGeneration]] = {each: {} for each in datasets}
    for some in batches(sorted(by_dataset)):
        query = (
            sa.select(pointers.c.dataset_id, pointers.c.generation_id, versions.c.status, table.c.revision)
            .join(table, table.c.id == pointers.c.generation_id)
            .join(versions, versions.c.id == pointers.c.version_id)
            .join(dags, dags.c.name == versions.c.dag)
            .where(
                pointers.c.dataset_id.in_(some),
                sa.or_(versions.c.status.in_(_FOLLOWED), versions.c.id == dags.c.previous_version_id),
            )
        )
        for row in tx.execute(query):
            by_id = by_dataset[row.dataset_id]
            before = by_id.get(row.generation_id)
            is_followed = row.status in _FOLLOWED or (before is not None and before.is_followed)
            by_id[row.generation_id] = SinkGeneration(
                id=row.generation_id, is_followed=is_followed, revision=row.revision or 0
            )
    return {dataset: [by_id[id_] for id_ in sorted(by_id)] for dataset, by_id in by_dataset.items()}


def _load_marks(tx: Tx, names: Iterable[str]) -> dict[str, sa.RowMapping]:
    by_id = {_mark_id(name): name for name in names}
    query = sa.select(_marks).where(_marks.c.edition_id.in_(sorted(by_id)), _marks.c.key == _MARK)
    return {by_id[row["edition_id"]]: row for row in tx.all(query)}


def _has_sink() -> sa.ColumnElement[bool]:
    return _publications.c.sink.is_not(None)


def _mark_id(name: str) -> str:
    return derive_id("sink", name)
