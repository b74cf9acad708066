"""What a pipeline has published: a few rows of each table, and where all of it came from."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qo.api.contract.task import Piece
from qo.config.location import local_path
from qo.core.pipeline.plan import Plan, upstream
from qo.dispatcher.views.published import Table

CELL_MAX = 28


def sample(table: Table, rows: int) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and a few rows as text. Only files on this machine are read; others give none. A file
    may be older than some of the columns."""
    found: list[dict[str, str]] = []
    for path in _files(table.sample):
        found += _parquet(path, rows) if path.suffix == ".parquet" else _lines(path, rows)
        if len(found) >= rows:
            break
    header = list(dict.fromkeys(name for row in found[:rows] for name in row))
    return header, [[row.get(name, "") for name in header] for row in found[:rows]]


def _files(pieces: Sequence[Piece]) -> Iterator[Path]:
    for piece in pieces:
        for name in piece.files:
            uri = name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
            if uri.startswith("file:") and local_path(uri).is_file():
                yield local_path(uri)


def _parquet(path: Path, rows: int) -> list[dict[str, str]]:
    parquet: Any = importlib.import_module("pyarrow.parquet")  # Only who has such files waits for it.
    file = parquet.ParquetFile(path)
    try:
        batch = next(file.iter_batches(batch_size=rows), None)
    finally:
        file.close()
    if batch is None:
        return []
    return [{name: cell(value) for name, value in row.items()} for row in batch.to_pylist()]


def _lines(path: Path, rows: int) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [{"line": line.rstrip("\n")[:200]} for line in itertools.islice(file, rows)]


def cell(value: Any) -> str:
    """A value for a narrow column."""
    if value is None:
        return ""
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def origins(plan: Plan) -> list[tuple[str, str]]:
    """Each published name with the way that leads to it, from its source on; what is read beside is in brackets."""
    jobs = {job.job.name: job.job for job in plan.jobs}

    def way(name: str) -> str:
        job = jobs[name]
        above = [(upstream(plan.dag, each), each.trigger) for each in job.inputs]
        first = next((made for made, trigger in above if trigger and made is not None), None)
        beside = sorted({made for made, _ in above if made is not None and made != first})
        said = f"{name} [{', '.join(beside)}]" if beside else name
        return f"{way(first)} -> {said}" if first is not None else said

    published = ((name, publish.from_.job or "") for name, publish in plan.dag.publish.items())
    return [(name, way(job)) for name, job in published]
