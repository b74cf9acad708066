"""Manifests: a published dataset as a plain JSON file, for readers without qo or Spark.

    {data}/_manifests/{name}/{revision}.json    one version; never changes
    {data}/_manifests/{name}/latest.json        the current one

A manifest names the committed files; nothing else in the data root is part of the dataset. Replaced files are collected
after a while, so an old manifest is valid for as long as its files are kept. Manifests are collected as well: a dataset
that grows all day has many, and each names all files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa

from qo.api.contract.reading import ReadingAnswer
from qo.config.location import path_text
from qo.core.pipeline.plan import derive_id
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.views import reading

SECONDS = 3.0  # Between two manifests of one dataset, …
PIECES_PER_S = 1000  # … and a second more per so many pieces, so that huge manifests are written seldom.
FORMATS = {"parquet": "parquet", "jsonl": "json", "ndjson": "json", "json": "json", "csv": "csv"}

DIRECTORY = "_manifests"
KEY = re.compile(rf"{DIRECTORY}/(?P<name>[^/]+)/(?P<revision>[1-9][0-9]{{0,17}})\.json\Z")  # Below the data root.

_publications, _generations, _marks = schema.publications, schema.generations, schema.operator_state
_MARK = "manifest"
_LAST = sa.select(
    schema.commits.c.revision,
    schema.commits.c.committed_at,
    _generations.c.revision.label("last"),
    _generations.c.collected_at,
).join(_generations, _generations.c.id == schema.commits.c.generation_id)


@dataclass(frozen=True, slots=True)
class Due:
    """A version that has no manifest yet."""

    name: str
    generation_id: str
    revision: int
    epoch: int  # Of the topology: a rollback makes an older revision current again, in a later epoch.


def due(tx: Tx) -> list[Due]:
    """Return the published datasets whose manifest is to be written now."""
    live = topology.load(tx)
    published = {row.name: row.dataset_id for row in tx.execute(sa.select(_publications))}
    current = {name: live.current[dataset] for name, dataset in published.items() if dataset in live.current}
    latest = _latest(tx, current.values())
    marks = _load_marks(tx, current)
    return [
        Due(name, generation, revision, live.epoch)
        for name, generation in sorted(current.items())
        if (revision := latest.get(generation)) is not None
        and _is_due(marks.get(name), generation, revision, tx.now)
    ]


def _is_due(mark: sa.RowMapping | None, generation: str, revision: int, now: datetime) -> bool:
    if mark is None:
        return True
    last = mark["value"]
    if (last["generation"], last["revision"]) == (generation, revision):
        return False
    waited = (now - mark["updated_at"]).total_seconds()
    return waited >= SECONDS + last["pieces"] / PIECES_PER_S or waited < 0


def mark(tx: Tx, version: Due, pieces: int) -> None:
    """Store that a manifest was written."""
    value = {"generation": version.generation_id, "revision": version.revision, "pieces": pieces}
    tx.upsert(_marks, {"edition_id": _mark_id(version.name), "key": _MARK, "value": value, "updated_at": tx.now})


def manifest(tx: Tx, version: Due) -> dict[str, Any]:
    """Return the document of a manifest."""
    pages: list[ReadingAnswer] = []
    after = None
    while not pages or after is not None:
        page = reading.pieces(
            tx, version.name, revision=version.revision, generation_id=version.generation_id, after=after
        )
        pages.append(page)
        after = page.after
    return {**document(version.name, pages), "epoch": version.epoch}


def judge(tx: Tx, keys: Iterable[str], before: datetime) -> dict[str, tuple[bool, str]]:
    """Return which of these files may be deleted, and why or why not; files that are no manifests are left out.

    The last manifest of each generation that is kept stays, and the latest of each name.
    """
    matches = {key: match for key in keys if (match := KEY.match(key)) is not None}
    commits: dict[int, sa.RowMapping] = {}
    for some in batches(sorted({int(match["revision"]) for match in matches.values()})):
        commits |= {row["revision"]: row for row in tx.all(_LAST.where(schema.commits.c.revision.in_(some)))}
    marks = _load_marks(tx, {unquote(match["name"]) for match in matches.values()})
    latest = {(name, row["value"]["revision"]) for name, row in marks.items()}
    verdicts: dict[str, tuple[bool, str]] = {}
    for key, match in matches.items():
        revision = int(match["revision"])
        commit = commits.get(revision)
        if commit is None:
            verdicts[key] = False, "this dispatcher does not know it"
        elif commit["committed_at"] > before:
            verdicts[key] = False, "its version was committed not long ago"
        elif (unquote(match["name"]), revision) in latest:
            verdicts[key] = False, "it is the latest"
        elif revision == commit["last"] and commit["collected_at"] is None:
            verdicts[key] = False, "it is the last of its generation"
        else:
            verdicts[key] = True, "there is a later one"
    return verdicts


def document(name: str, pages: Iterable[ReadingAnswer]) -> dict[str, Any]:
    """Build a manifest from all pages of a reading."""
    all_pages = list(pages)
    first = all_pages[0]
    files = [
        {
            "path": _path(piece.location, file),
            "partition_key": piece.partition_key,
            "start": piece.start,
            "end": piece.end,
            "cursor": piece.cursor,
            "revision": piece.revision,
            # Known per piece only, so not for each of several files.
            "rows": piece.rows if len(piece.files) == 1 else None,
            "bytes": piece.bytes if len(piece.files) == 1 else None,
        }
        for page in all_pages
        for piece in page.pieces
        for file in piece.files
    ]
    pieces = [piece for page in all_pages for piece in page.pieces]
    columns = first.columns
    return {
        "name": name,
        "dataset_id": first.dataset_id,
        "generation_id": first.generation_id,
        "revision": first.revision,
        "committed_at": None if first.committed_at is None else first.committed_at.isoformat(),
        "format": _format(files),
        "columns": None if columns is None else [each.model_dump() for each in columns],
        "rows": sum(piece.rows or 0 for piece in pieces),
        "bytes": sum(piece.bytes or 0 for piece in pieces),
        "files": files,
    }


def _path(location: str | None, name: str) -> str:
    """Return an absolute path or a URL, which every reader understands."""
    uri = name if ":/" in name else f"{(location or '').rstrip('/')}/{name}"
    return path_text(uri) if uri.startswith("file:") else uri


def _format(files: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the format of the files; None if there are none, or several formats."""
    kinds = {FORMATS.get(str(each["path"]).removesuffix(".gz").rpartition(".")[2].lower()) for each in files}
    return kinds.pop() if len(kinds) == 1 else None


def _latest(tx: Tx, generations: Iterable[str]) -> dict[str, int]:
    revisions: dict[str, int] = {}
    for some in batches(sorted(set(generations))):
        rows = tx.execute(
            sa.select(_generations.c.id, _generations.c.revision).where(
                _generations.c.id.in_(some), _generations.c.revision.is_not(None)
            )
        )
        revisions |= {row.id: row.revision for row in rows}
    return revisions


def _load_marks(tx: Tx, names: Iterable[str]) -> dict[str, sa.RowMapping]:
    by_id = {_mark_id(name): name for name in names}
    marks: dict[str, sa.RowMapping] = {}
    for some in batches(sorted(by_id)):
        rows = tx.all(sa.select(_marks).where(_marks.c.edition_id.in_(some), _marks.c.key == _MARK))
        marks |= {by_id[row["edition_id"]]: row for row in rows}
    return marks


def _mark_id(name: str) -> str:
    return derive_id("manifest", name)
